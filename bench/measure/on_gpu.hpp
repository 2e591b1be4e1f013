#pragma once
#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/attention/dtype.hpp"

namespace flashladder {

/// How long something took on the GPU, in milliseconds, over several runs.
struct Timing {
  double median;          ///< What results are computed from.
  double lower_quartile;  ///< A quarter of the runs took no longer.
  double upper_quartile;  ///< Three quarters took no longer.
  std::size_t runs;       ///< How many there were.

  /// The rate of `amount` (FLOPs, bytes) in each run: that many a second.
  double per_second(double amount) const { return amount / median * 1e3; }
};

/// Times `run`, which starts work on the GPU, by the GPU's own clock, with the L2 cache emptied before each
/// run, until 2 s have gone by or 20 are done, but at least 3. Throws Error where the GPU reports one.
Timing time_on_gpu(const std::function<void()>& run);

/// Registers a benchmark that is one call of `measure`, which checks what it times, throws where that is
/// wrong, and adds counters of its own. An exception is reported, and sets `any_failed` unless it is
/// OutOfMemory: that is what a stage's memory means.
void add_gpu_benchmark(const std::string& name, bool& any_failed,
                       std::function<Timing(benchmark::State&)> measure);

/// `values` as elements of `dtype`, ready to be uploaded.
std::vector<std::byte> as_bytes(Dtype dtype, const std::vector<float>& values);

}  // namespace flashladder
