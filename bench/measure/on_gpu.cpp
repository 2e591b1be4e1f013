#include "bench/measure/on_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/check/run.hpp"

namespace flashladder {

Timing time_on_gpu(const std::function<void()>& run) {
  std::vector<double> ms;
  GpuTimer timer;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (!timed_enough(ms.size(), seconds())) {
    timer.start();
    run();
    ms.push_back(timer.stop());
  }
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms[ms.size() / 4], ms[ms.size() * 3 / 4], ms.size()};
}

void add_gpu_benchmark(const std::string& name, bool& any_failed,
                       std::function<Timing(benchmark::State&)> measure) {
  const auto once = [measure = std::move(measure), &any_failed](benchmark::State& state) {
    // One iteration, which is the whole measurement.
    for (auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores): it is never read
      try {
        const Timing ms = measure(state);
        state.SetIterationTime(ms.median / 1e3);
        state.counters["ms"] = ms.median;
        state.counters["ms_lower_quartile"] = ms.lower_quartile;
        state.counters["ms_upper_quartile"] = ms.upper_quartile;
        state.counters["runs"] = static_cast<double>(ms.runs);
      } catch (const OutOfMemory& error) {
        state.SkipWithError(error.what());
        return;
      } catch (const std::exception& error) {
        any_failed = true;
        state.SkipWithError(error.what());
        return;
      }
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), once)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

std::vector<std::byte> as_bytes(Dtype dtype, const std::vector<float>& values) {
  const auto size = static_cast<std::size_t>(size_of(dtype));
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) store_as(dtype, values[i], &bytes[i * size]);
  return bytes;
}

}  // namespace flashladder
