#pragma once
#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/measure/gpu_pace.hpp"
#include "common/attention/dtype.hpp"

namespace flashladder {

/// What comes between runs that are timed. The power that a GPU may take sets its clock.
enum class Pace {
  rested,  ///< Before each run the GPU has nothing to do for 10 ms; then its L2 cache is emptied.
  busy,    ///< Runs follow each other without a pause for 200 ms, of which the second half is timed.
};

/// The pace of this program's measurements: rested, unless it is set.
Pace& pace();

/// How long something took on the GPU, in milliseconds, over several runs.
struct Timing {
  double median;          ///< What results are computed from.
  double lower_quartile;  ///< A quarter of the runs took no longer.
  double upper_quartile;  ///< Three quarters took no longer.
  std::size_t runs;       ///< How many there were; busy: series of them.
  double sm_ghz;          ///< Clock of the multiprocessors in busy runs, by nvidia-smi; else 0.

  /// The rate of `amount` (FLOPs, bytes) in each run: that many a second.
  double per_second(double amount) const { return amount / median * 1e3; }
};

/// Times `run`, which starts work on the GPU, by the GPU's own clock, at the program's pace, until 2 s have
/// gone by or 20 are done, but at least 3. Throws Error where the GPU reports one.
Timing time_on_gpu(const std::function<void()>& run);

/// Times how long the host is busy with each of 200 calls of `run`, which starts work on the GPU, while the
/// GPU is kept from beginning it. Throws Error where the GPU reports one.
Timing time_on_host(const std::function<void()>& run);

/// Registers a benchmark that is one call of `measure`, which checks what it times, throws where that is
/// wrong, and adds counters of its own. An exception is reported, and sets `any_failed` unless it is
/// OutOfMemory: that is what a stage's memory means.
void add_gpu_benchmark(const std::string& name, bool& any_failed,
                       std::function<Timing(benchmark::State&)> measure);

/// `values` as elements of `dtype`, ready to be uploaded.
std::vector<std::byte> as_bytes(Dtype dtype, const std::vector<float>& values);

}  // namespace flashladder
