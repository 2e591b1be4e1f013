#include "bench/measure/on_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "common/check/run.hpp"

namespace flashladder {
namespace {

constexpr std::chrono::milliseconds rest(10);
constexpr double busy_ms = 60;

/// Milliseconds of a run, of one or of the second half of a series.
double time_once(GpuTimer& timer, const std::function<void()>& run) {
  int timed = 1;
  if (pace() == Pace::rested) {
    std::this_thread::sleep_for(rest);
  } else {
    timer.start();
    run();
    timed = static_cast<int>(std::ceil(busy_ms / 2 / timer.stop()));
    for (int i = 0; i < timed; ++i) run();
  }
  timer.start();
  for (int i = 0; i < timed; ++i) run();
  return timer.stop() / timed;
}

}  // namespace

Pace& pace() {
  static Pace of_all = Pace::rested;
  return of_all;
}

Timing time_on_gpu(const std::function<void()>& run) {
  std::vector<double> ms;
  GpuTimer timer;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (!timed_enough(ms.size(), seconds())) ms.push_back(time_once(timer, run));
  const double ghz = sm_ghz();
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms[ms.size() / 4], ms[ms.size() * 3 / 4], ms.size(), ghz};
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
        state.counters["SM GHz"] = ms.sm_ghz;
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

#ifndef FLASHLADDER_HAS_CUDA
double sm_ghz() {
  throw Error(unavailable(Backend::cuda));
}
double tensor_flops_per_clock() {
  throw Error(unavailable(Backend::cuda));
}
#endif

std::vector<std::byte> as_bytes(Dtype dtype, const std::vector<float>& values) {
  const auto size = static_cast<std::size_t>(size_of(dtype));
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) store_as(dtype, values[i], &bytes[i * size]);
  return bytes;
}

}  // namespace flashladder
