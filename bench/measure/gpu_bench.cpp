// The stages of kernels on a GPU, over the grid of the FlashAttention papers (batch * N = 16k tokens, heads
// * d = 2048), forward and backward pass, and over batch * heads at two fixed lengths. The last
// one for Hopper also on what is no whole tile. And how long a call keeps the host busy. Each benchmark is
// one measurement: a run that is checked against the fp64 oracle on rows of the last head, and everywhere
// for elements that are no finite numbers, then runs timed by the GPU's own clock, rested or with --busy
// (on_gpu.hpp), until 2 s have gone by or 20 are done, but at least 3. Time is their median. Before the
// first of them come the GPU's peaks (gpu_peaks.cpp), so that each result is also a percentage of what
// cuBLAS reached in the same run and of the roofline's bound.
#include "bench/measure/gpu_bench.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <regex>
#include <string>
#include <vector>

#include "bench/measure/gpu_backward.hpp"
#include "bench/measure/gpu_peaks.hpp"
#include "bench/measure/gpu_tensors.hpp"
#include "bench/measure/on_gpu.hpp"
#include "common/attention/workspace.hpp"

namespace flashladder {
namespace {

Timing time_forward(benchmark::State& state, const Stage& stage, const Problem& p, const Peaks& peaks) {
  Tensors& t = Tensors::of(p.dtype);
  Workspace workspace(free_memory(Backend::cuda));
  const auto run = [&] { run_forward(stage, t.forward(p, workspace)); };
  Tensors::poison(t.O);
  Tensors::poison(t.L);
  run();
  synchronise(Backend::cuda);
  t.check_forward_pass(p);
  const Timing ms = time_on_gpu(run);
  report_speed(state, p, Pass::forward, ms, peaks);
  return ms;
}

/// How long a call keeps the host busy.
Timing time_call(benchmark::State& state, const Stage& stage, const Problem& p, const Peaks&) {
  Workspace workspace(free_memory(Backend::cuda));
  const Forward f = Tensors::of(p.dtype).forward(p, workspace);
  const Timing ms = time_on_host([&] { run_forward(stage, f); });
  state.counters["host us"] = 1e3 * ms.median;
  return ms;
}

/// A pass of a stage on a problem, and its benchmark's name.
struct Case {
  const Stage* stage;
  Problem problem;
  std::string name;
  Timing (*time)(benchmark::State&, const Stage&, const Problem&, const Peaks&);
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const Stage& stage, const std::string& family, const Problem& p) {
    all.push_back({&stage, p,
                   label(stage) + "/" + family + "/d:" + std::to_string(p.d) +
                       "/N:" + std::to_string(p.Nq) + "/BH:" + std::to_string(p.batch * p.q_heads) +
                       (p.causal ? "/causal" : "/full"),
                   family == "backward" ? time_backward
                   : family == "host"   ? time_call
                                        : time_forward});
  };
  const auto add_grid = [&](const Stage* stage, const std::string& family) {
    for (std::int64_t d : {64, 128, 256}) {
      if (!stage->supports.head_dim(d)) continue;
      for (bool causal : {false, true}) {
        for (std::int64_t N = 512; N <= Tensors::tokens; N *= 2) {
          Problem p;
          p.batch = Tensors::tokens / N;
          p.q_heads = p.kv_heads = Tensors::width / d;
          p.Nq = p.Nk = N;
          p.d = d;
          p.causal = causal;
          p.dtype = stage->supports.dtypes.back();  // bf16 on tensor cores
          add(*stage, family, p);
        }
      }
    }
  };
  for (const Stage* stage : gpu_stages()) {
    if (stage->forward != nullptr) add_grid(stage, "grid");
  }
  // What is no whole tile of bf16 with a key/value head for each query head: other head dimensions, fp16,
  // other lengths, grouped heads; of the last forward pass for Hopper that takes every head dimension.
  const Stage* hopper = nullptr;
  for (const Stage* stage : gpu_stages()) {
    const bool takes_all = stage->forward != nullptr && stage->supports.head_dim(max_head_dim);
    if (takes_all && stage->gpu == Gpu::hopper) hopper = stage;
  }
  if (hopper != nullptr) {
    for (bool causal : {false, true}) {
      const auto add_other = [&](const std::string& what, auto change) {
        Problem p;
        p.d = 128;
        p.batch = 4;
        p.Nq = p.Nk = 4096;
        p.causal = causal;
        p.dtype = Dtype::bf16;
        change(p);
        p.q_heads = Tensors::width / p.d;
        p.kv_heads = what == "gqa" ? p.q_heads / 4 : p.q_heads;
        add(*hopper, "other/" + what, p);
      };
      // Rows of d = 72, 88, 104, ... are no multiple of 32 bytes, which is what memory is read in.
      for (int d : {64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 160, 176, 184, 192, 200, 208, 256})
        add_other("d", [&](Problem& p) { p.d = d; });
      add_other("fp16", [](Problem& p) { p.dtype = Dtype::fp16; });
      add_other("ragged", [](Problem& p) { p.Nq = p.Nk = 4001; });
      add_other("gqa", [](Problem&) {});
    }
  }
  for (const Stage* stage : gpu_stages()) {
    if (stage->forward == nullptr) continue;
    Problem p;  // a small one: the host takes as long for all
    p.q_heads = p.kv_heads = 16;
    p.Nq = p.Nk = 512;
    p.d = 64;
    p.dtype = stage->supports.dtypes.back();
    add(*stage, "host", p);
  }
  const auto add_heads = [&](const Stage& stage, std::int64_t N,
                             std::initializer_list<std::int64_t> heads) {
    for (std::int64_t BH : heads) {
      Problem p;
      p.q_heads = p.kv_heads = BH;
      p.Nq = p.Nk = N;
      p.d = 64;
      add(on_backend(stage, Backend::cuda), "heads", p);
    }
  };
  // What more blocks than heads are worth: the stage that has them, and the one before it.
  const Stage& parallel = *select_stages("fa2_sequence_parallel").front();
  for (const Stage* stage : {&find_stage(parallel.before), &parallel})
    add_heads(*stage, 1024, {1, 2, 4, 8, 16, 32, 64, 96, 128, 132, 136, 160, 192, 256, 264, 384, 512});
  // From how many heads on FlashAttention-1 gains, and where it falls behind: from 10 to the stage that
  // ends that. The last number fills the tensors.
  for (const Stage* stage = &parallel; stage->backend != Backend::cpu; stage = &find_stage(stage->before))
    add_heads(*stage, 512, {1, 8, 32, 132, 264, 528, 1024});
  for (const Stage* stage : gpu_stages()) {
    if (stage->backward != nullptr) add_grid(stage, "backward");
  }
  return all;
}

/// Where --benchmark_filter selects one of `all`, it is to select the peaks too.
void select_peaks_with(const std::vector<Case>& all) {
  const std::string filter = benchmark::GetBenchmarkFilter();
  if (filter.empty() || filter == "all" || filter.front() == '-')
    return;  // these select them by themselves
  try {
    const std::regex wanted(filter, std::regex::extended);
    if (std::any_of(all.begin(), all.end(), [&](const Case& one) {
          return std::regex_search(one.name + "/iterations:1/manual_time", wanted);
        }))
      benchmark::SetBenchmarkFilter(filter + "|^peak/");
  } catch (const std::regex_error&) {  // Google Benchmark will say so
  }
}

}  // namespace

void register_gpu_benchmarks(bool& any_failed) {
  if (!unavailable(Backend::cuda).empty()) return;
  for (const Stage* stage : stages()) {
    const std::string why = unavailable(*stage, Backend::cuda);
    // What comes after the last colon is what to do instead: it cannot be timed.
    if (!why.empty())
      std::fprintf(stderr, "ladder: left out: %s\n", why.substr(0, why.rfind(": ")).c_str());
  }
  for (const auto& [key, value] : gpu_facts()) benchmark::AddCustomContext(key, value);
  benchmark::AddCustomContext("pace", pace() == Pace::busy ? "busy" : "rested");
  static Peaks peaks;  // of this run: it outlives the registration
  register_gpu_peaks(peaks, any_failed);
  const std::vector<Case> all = cases();
  for (const auto& [stage, problem, name, time] : all) {
    add_gpu_benchmark(name, any_failed, [time = time, stage = stage, p = problem](benchmark::State& state) {
      state.SetLabel(std::string(to_string(p.dtype)));  // also of one that fails or does not fit
      return time(state, *stage, p, peaks);
    });
  }
  select_peaks_with(all);
}

}  // namespace flashladder
