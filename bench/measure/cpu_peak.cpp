// What no stage on a CPU can exceed: multiply-adds in registers and nothing else, by one thread, in fp32.
// Compiled for the same instructions as the stages.
#include <benchmark/benchmark.h>

#include <experimental/simd>

namespace {

using Vec = std::experimental::native_simd<float>;
constexpr int sums = 12;  // more than the latency of a multiply-add times how many start per cycle
constexpr int steps = 2'000'000;

void multiply_adds(benchmark::State& state) {
  const Vec factor = 0.999f, term = 0.5f;
  for (auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores): it is never read
    Vec sum[sums];        // never leaves the registers
    for (int i = 0; i < sums; ++i) sum[i] = static_cast<float>(i);
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < sums; ++i) sum[i] = sum[i] * factor + term;
    }
    for (int i = 1; i < sums; ++i) sum[0] += sum[i];
    benchmark::DoNotOptimize(std::experimental::reduce(sum[0]));
  }
  const double flops = 2.0 * sums * steps * static_cast<double>(Vec::size());
  state.counters["GFLOP/s"] =
      benchmark::Counter(1e-9 * flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["lanes"] = static_cast<double>(Vec::size());
#ifdef __clang__
  state.SetLabel(__VERSION__);
#else
  state.SetLabel("GCC " __VERSION__);
#endif
}
BENCHMARK(multiply_adds)->Name("multiply_adds/fp32")->Unit(benchmark::kMillisecond);

}  // namespace
