// The CPU stages under Google Benchmark, over sequence length, head dimension and mask; and, where there is
// a GPU, the stages of kernels on it (gpu_bench.cpp). What the emulator takes is the speed of nothing and
// is not timed. A stage is checked on each shape before it is timed there; one that fails is reported and
// never timed.
#include <benchmark/benchmark.h>

#include <exception>
#include <string>
#include <vector>

#include "bench/gpu_bench.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

namespace {

using namespace flashladder;

/// Whether a stage failed its check or did not fit: the exit status tells.
bool any_failed = false;

/// Times `stage` on one batch entry of two heads.
void forward(benchmark::State& state, const Stage& stage, bool causal) {
  Problem problem;
  problem.q_heads = problem.kv_heads = 2;
  problem.Nq = problem.Nk = state.range(0);
  problem.d = state.range(1);
  problem.causal = causal;
  const Inputs inputs = random_inputs(problem, 1);
  std::int64_t extra_bytes = 0;
  try {
    const Expected expected = expect_forward(inputs, computing_dtype(stage, problem.dtype));
    const Verdict verdict = run_and_check(stage, inputs, Layout::contiguous, expected);
    if (!verdict.passed) throw Error("failed its check: " + verdict.why);
    ForwardRun run(stage, inputs);
    for (auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores): it is never read
      Workspace workspace;
      run.run(workspace);
      extra_bytes = workspace.peak_bytes();
    }
  } catch (const std::exception& error) {
    any_failed = true;
    state.SkipWithError(error.what());
    return;
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(problem.forward_flops() / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["extra_bytes"] = static_cast<double>(extra_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const Stage* stage : stages()) {
    if (stage->backend != Backend::cpu) continue;
    std::vector<std::int64_t> head_dims;
    for (std::int64_t d : {64, 128}) {
      if (stage->supports.head_dim(d)) head_dims.push_back(d);
    }
    for (bool causal : {false, true}) {
      const std::string name = label(*stage) + (causal ? "/causal" : "/full");
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { forward(state, *stage, causal); })
          ->ArgNames({"N", "d"})
          ->ArgsProduct({{256, 512, 1024}, head_dims})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  register_gpu_benchmarks(any_failed);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return any_failed ? 1 : 0;
}
