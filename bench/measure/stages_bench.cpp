// The CPU stages under Google Benchmark, over sequence length, head dimension and mask; and, where there is
// a GPU, the stages of kernels on it (gpu_bench.cpp). What the emulator takes is the speed of nothing and
// is not timed. A stage is checked on each shape before it is timed there; one that fails is reported and
// never timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/gpu_bench.hpp"
#include "bench/measure/on_gpu.hpp"
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

constexpr char help[] =
    "Times the stages with Google Benchmark: those in C++ on the CPU, and where there is a GPU those of\n"
    "kernels on it. Each is checked on a shape before it is timed there; one that fails is not timed.\n\n"
    "  ./ladder bench --benchmark_list_tests                         what there is to time here\n"
    "  ./ladder bench --benchmark_filter='^0[12] .*d:64'             those whose name matches\n"
    "  ./ladder bench --benchmark_filter='^29 .*/grid/.*causal'      on a GPU; also /heads/ and "
    "/backward/\n"
    "  ./ladder bench --benchmark_out=FILE --benchmark_context=commit=HASH\n"
    "                                                                the results as JSON, for the "
    "charts\n"
    "  ./ladder bench --busy ...                                     on a GPU back to back, with the "
    "clock\n"
    "\nOn a GPU the power that it takes sets its clock: it rests before each launch, but for --busy.\n"
    "Exit status: 0; 1 where nothing was timed or a stage failed; 2 for a wrong command or lost output.\n"
    "All other options are Google Benchmark's:\n\n";

/// Takes --busy, and says what Google Benchmark would pass over; 0, or the exit status.
int check_arguments(int& argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    if (word == "--busy") {
      if (!unavailable(Backend::cuda).empty()) {
        std::fputs("ladder: --busy is of a GPU, and none can be used here: leave it out\n", stderr);
        return 2;
      }
      pace() = Pace::busy;
      std::copy(argv + i + 1, argv + argc + 1, argv + i);
      --argc, --i;
      continue;
    }
    if (word == "-h") argv[i] = const_cast<char*>("--help");  // the one name that Google Benchmark has
    if (word == "-h" || word == "--help") std::fputs(help, stdout);
    constexpr std::string_view format = "--benchmark_out_format=";
    if (!word.starts_with(format)) continue;
    word.remove_prefix(format.size());
    if (word != "json" && word != "csv" && word != "console") {
      std::fprintf(stderr, "ladder: --benchmark_out_format is json, csv or console, not %s\n",
                   argv[i] + format.size());
      return 2;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const int status = check_arguments(argc, argv); status != 0) return status;
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
  if (benchmark::RunSpecifiedBenchmarks() == 0) {
    std::fprintf(stderr, "ladder: nothing was timed: --benchmark_list_tests shows what there is%s\n",
                 unavailable(Backend::cuda).empty() ? "" : "; without a GPU only stages in C++");
    any_failed = true;
  }
  benchmark::Shutdown();
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "ladder: cannot write to stdout: what is above is not all of it\n");
    return 2;
  }
  return any_failed ? 1 : 0;
}
