#include "bench/measure/on_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <tuple>
#include <utility>

#include "common/check/run.hpp"

namespace flashladder {
namespace {

constexpr double busy_ms = 200;

/// The clock of the multiprocessors now, in GHz, as nvidia-smi says; 0 where it does not.
double sm_ghz() {
  constexpr char command[] =
      "nvidia-smi --query-gpu=clocks.sm --format=csv,noheader,nounits --id=0 2> /dev/null";
  std::FILE* answer = popen(command, "r");
  if (answer == nullptr) return 0;
  int mhz = 0;
  if (std::fscanf(answer, "%d", &mhz) != 1) mhz = 0;
  pclose(answer);
  return mhz / 1e3;
}

/// Milliseconds of a run.
double time_rested(GpuTimer& timer, const std::function<void()>& run) {
  rest_on_gpu();
  timer.start();
  run();
  return timer.stop();
}

/// Milliseconds of a run in the second half of a series, and the clock meanwhile.
std::pair<double, double> time_busy(GpuTimer& timer, const std::function<void()>& run) {
  timer.start();
  run();
  const int half = static_cast<int>(std::ceil(busy_ms / 2 / timer.stop()));
  for (int i = 0; i < half; ++i) run();
  timer.start();
  for (int i = 0; i < half; ++i) run();
  const double ghz = sm_ghz();
  return {timer.stop() / half, ghz};
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
  double ghz = 0;
  while (!timed_enough(ms.size(), seconds())) {
    if (pace() == Pace::rested) {
      ms.push_back(time_rested(timer, run));
    } else {
      double once = 0;
      std::tie(once, ghz) = time_busy(timer, run);
      ms.push_back(once);
    }
  }
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms[ms.size() / 4], ms[ms.size() * 3 / 4], ms.size(), ghz};
}

Timing time_on_host(const std::function<void()>& run) {
  constexpr std::size_t calls = 200;
  std::vector<double> ms;
  for (int series = 0; series < 2; ++series) {  // the first one is the warm-up
    ms.clear();
    rest_on_gpu();
    while (ms.size() < calls) {
      const auto start = std::chrono::steady_clock::now();
      run();
      ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    synchronise(Backend::cuda);
  }
  std::sort(ms.begin(), ms.end());
  return {ms[calls / 2], ms[calls / 4], ms[calls * 3 / 4], calls, 0};
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
        if (ms.sm_ghz > 0) state.counters["SM GHz"] = ms.sm_ghz;
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
void rest_on_gpu() {
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
