// The stages of kernels on a GPU, over the grid of the FlashAttention papers (batch * N = 16k tokens, heads
// * d = 2048) and over batch * heads at a fixed length. Each benchmark is one measurement: a run that is
// checked against the fp64 oracle on rows of the last head, then runs timed by the GPU's own clock with the
// L2 cache emptied before each, until 2 s have gone by or 20 are done, but at least 3. Time is their
// median. Before the first of them come the GPU's peaks (gpu_peaks.cpp), so that each result is also a
// percentage of what cuBLAS reached in the same run and of the roofline's bound.
#include "bench/gpu_bench.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "bench/gpu_peaks.hpp"
#include "bench/on_gpu.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

namespace flashladder {
namespace {

constexpr std::int64_t tokens = 16384, width = 2048;  // batch * N and heads * d of the papers' grid

/// Q, K, V and O of every problem of the grid in turn, in one dtype: they are all of one size.
struct Tensors {
  explicit Tensors(Dtype of) : dtype(of) {
    Problem p;
    p.Nq = p.Nk = elements / p.d;
    p.dtype = dtype;
    inputs = random_inputs(p, 1);
    for (auto [memory, values] : {std::pair{&Q, &inputs.Q}, {&K, &inputs.K}, {&V, &inputs.V}})
      memory->upload(0, as_bytes(dtype, *values).data(), memory->bytes());
  }
  static constexpr std::int64_t elements = tokens * width;
  Dtype dtype;
  Inputs inputs;
  BackendMemory Q{Backend::cuda, elements*size_of(dtype)}, K{Backend::cuda, elements*size_of(dtype)},
      V{Backend::cuda, elements*size_of(dtype)}, O{Backend::cuda, elements*size_of(dtype)},
      L{Backend::cuda, elements / 32 * 4};

  /// Those of a dtype, made when first needed.
  static Tensors& of(Dtype dtype) {
    static std::map<Dtype, Tensors> all;
    return all.try_emplace(dtype, dtype).first->second;
  }
};

/// Throws Error unless the last rows of the last head are what the oracle says.
void check_last_rows(const Problem& p, Tensors& t) {
  const std::int64_t rows = std::min<std::int64_t>(16, p.Nq), head = p.batch * p.q_heads - 1;
  const std::int64_t bytes = size_of(p.dtype);
  Inputs part{p, {}, {}, {}};
  part.problem.batch = part.problem.q_heads = part.problem.kv_heads = 1;
  part.problem.Nq = rows;
  const auto slice = [&](const std::vector<float>& all, std::int64_t from_row) {
    const auto begin = all.begin() + (head * p.Nk + from_row) * p.d;
    return std::vector<float>(begin, all.begin() + (head + 1) * p.Nk * p.d);
  };
  part.Q = slice(t.inputs.Q, p.Nq - rows);
  part.K = slice(t.inputs.K, 0);
  part.V = slice(t.inputs.V, 0);
  std::vector<std::byte> O(static_cast<std::size_t>(rows * p.d * bytes));
  Result<float> got{std::vector<float>(rows * p.d), std::vector<float>(rows)};
  const std::int64_t row = (head + 1) * p.Nq - rows;
  t.O.download(row * p.d * bytes, O.data(), rows * p.d * bytes);
  for (std::int64_t i = 0; i < rows * p.d; ++i) got.O[i] = load_as(p.dtype, &O[i * bytes]);
  t.L.download(row * 4, got.L.data(), rows * 4);
  const Verdict verdict = check_forward(got, expect_forward(part, p.dtype));
  if (!verdict.passed) throw Error("failed its check: " + verdict.why);
}

Timing forward(benchmark::State& state, const Stage& stage, const Problem& p, const Peaks& peaks) {
  Tensors& t = Tensors::of(p.dtype);
  Workspace workspace(free_memory(Backend::cuda));
  const auto tensor = [&](const BackendMemory& memory) {
    return Tensor{memory.data(), p.dtype, {p.q_heads * p.Nq * p.d, p.Nq * p.d, p.d}};
  };
  const auto run = [&] {
    run_forward(stage, {p, tensor(t.Q), tensor(t.K), tensor(t.V), tensor(t.O),
                        static_cast<float*>(t.L.data()), workspace});
  };
  const std::vector<std::byte> nothing(static_cast<std::size_t>(t.O.bytes()), std::byte{0xff});  // NaN
  t.O.upload(0, nothing.data(), t.O.bytes());
  t.L.upload(0, nothing.data(), t.L.bytes());
  run();
  synchronise(Backend::cuda);
  check_last_rows(p, t);
  const Timing ms = time_on_gpu(run);
  const double flops = ms.per_second(p.forward_flops()), peak = peaks.gemm(p.dtype);
  state.counters["TFLOP/s"] = flops / 1e12;
  if (peak > 0) state.counters["% of GEMM"] = 100 * flops / peak;
  if (peak > 0 && peaks.copy > 0)
    state.counters["% of roofline"] = ms.per_second(100 * roofline_seconds(p, peak, peaks.copy));
  return ms;
}

/// A stage on a problem, and its benchmark's name.
struct Case {
  const Stage* stage;
  Problem problem;
  std::string name;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const Stage& stage, const std::string& family, const Problem& p) {
    all.push_back({&stage, p,
                   label(stage) + "/" + family + "/d:" + std::to_string(p.d) +
                       "/N:" + std::to_string(p.Nq) + "/BH:" + std::to_string(p.batch * p.q_heads) +
                       (p.causal ? "/causal" : "/full")});
  };
  for (const Stage* stage : cuda_stages()) {
    if (stage->forward == nullptr) continue;
    for (std::int64_t d : {64, 128, 256}) {
      if (!stage->supports.head_dim(d)) continue;
      for (bool causal : {false, true}) {
        for (std::int64_t N = 512; N <= tokens; N *= 2) {
          Problem p;
          p.batch = tokens / N;
          p.q_heads = p.kv_heads = width / d;
          p.Nq = p.Nk = N;
          p.d = d;
          p.causal = causal;
          p.dtype = stage->supports.dtypes.back();  // bf16 on tensor cores
          add(*stage, "grid", p);
        }
      }
    }
  }
  for (int number : {12, 13}) {
    for (std::int64_t heads : {1, 2, 4, 8, 16, 32, 64, 96, 128, 132, 136, 160, 192, 256, 264, 384, 512}) {
      Problem p;
      p.q_heads = p.kv_heads = heads;
      p.Nq = p.Nk = 1024;
      p.d = 64;
      add(on_backend(find_stage(number), Backend::cuda), "heads", p);
    }
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
  for (const auto& [key, value] : gpu_facts()) benchmark::AddCustomContext(key, value);
  static Peaks peaks;  // of this run: it outlives the registration
  register_gpu_peaks(peaks, any_failed);
  const std::vector<Case> all = cases();
  for (const auto& [stage, problem, name] : all) {
    add_gpu_benchmark(name, any_failed, [stage = stage, p = problem](benchmark::State& state) {
      return forward(state, *stage, p, peaks);
    });
  }
  select_peaks_with(all);
}

}  // namespace flashladder
