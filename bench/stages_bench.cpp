// Every stage of the registry under Google Benchmark, over sequence length, head dimension and mask.
// A stage is checked on each shape before it is timed there; one that fails is reported and never timed.
#include <benchmark/benchmark.h>

#include <string>

#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

namespace {

using namespace flashladder;

/// Times `stage` on one batch entry of two heads.
void forward(benchmark::State& state, const Stage& stage, bool causal) {
  Problem problem;
  problem.q_heads = problem.kv_heads = 2;
  problem.Nq = problem.Nk = state.range(0);
  problem.d = state.range(1);
  problem.causal = causal;
  const Inputs inputs = random_inputs(problem, 1);
  const Verdict verdict = run_and_check(stage, inputs, Layout::contiguous,
                                        expect_forward(inputs, computing_dtype(stage, problem.dtype)));
  if (!verdict.passed) {
    state.SkipWithError(("failed its check: " + verdict.why).c_str());
    return;
  }
  ForwardRun run(stage, inputs);
  std::int64_t extra_bytes = 0;
  for (auto _ : state) {
    Workspace workspace;
    run.run(workspace);
    extra_bytes = workspace.peak_bytes();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(problem.forward_flops() / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["extra_bytes"] = static_cast<double>(extra_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Stage* stage : stages()) {
    for (bool causal : {false, true}) {
      const std::string name = label(*stage) + (causal ? "/causal" : "/full");
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { forward(state, *stage, causal); })
          ->ArgNames({"N", "d"})
          ->ArgsProduct({{256, 512, 1024}, {64, 128}})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
