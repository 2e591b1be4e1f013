// The stages of kernels on a GPU, over the grid of the FlashAttention papers (batch * N = 16k tokens, heads
// * d = 2048) and over batch * heads at a fixed length. Each benchmark is one measurement: a run that is
// checked against the fp64 oracle on rows of the last head, then runs timed by the GPU's own clock with the
// L2 cache emptied before each, until 2 s have gone by or 20 are done, but at least 3. Time is their
// median.
#include "bench/gpu_bench.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <string>
#include <vector>

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
    std::vector<std::byte> bytes(static_cast<std::size_t>(Q.bytes()));
    for (auto [memory, values] : {std::pair{&Q, &inputs.Q}, {&K, &inputs.K}, {&V, &inputs.V}}) {
      for (std::size_t i = 0; i < values->size(); ++i)
        store_as(dtype, (*values)[i], &bytes[i * static_cast<std::size_t>(size_of(dtype))]);
      memory->upload(0, bytes.data(), memory->bytes());
    }
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

void forward(benchmark::State& state, const Stage& stage, const Problem& p, bool& any_failed) {
  std::vector<double> ms;
  // One iteration, which is the whole measurement.
  for (auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores): it is never read
    try {
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
      state.SetIterationTime(ms[ms.size() / 2] / 1e3);
    } catch (const OutOfMemory& error) {  // not a failure: it is what the stage's memory means
      state.SkipWithError(error.what());
      return;
    } catch (const std::exception& error) {
      any_failed = true;
      state.SkipWithError(error.what());
      return;
    }
  }
  state.counters["ms"] = ms[ms.size() / 2];
  state.counters["ms_lower_quartile"] = ms[ms.size() / 4];
  state.counters["ms_upper_quartile"] = ms[ms.size() * 3 / 4];
  state.counters["runs"] = static_cast<double>(ms.size());
  state.counters["TFLOP/s"] = p.forward_flops() / (ms[ms.size() / 2] * 1e9);
}

/// One benchmark; it outlives the registration.
struct Case {
  const Stage& stage;
  Problem problem;
  bool& any_failed;
};

void add(const Stage& stage, const std::string& family, const Problem& p, bool& any_failed) {
  static std::deque<Case> cases;
  const Case& one = cases.emplace_back(Case{stage, p, any_failed});
  const std::string name = label(stage) + "/" + family + "/d:" + std::to_string(p.d) +
                           "/N:" + std::to_string(p.Nq) + "/BH:" + std::to_string(p.batch * p.q_heads) +
                           (p.causal ? "/causal" : "/full");
  benchmark::RegisterBenchmark(
      name.c_str(),
      [&one](benchmark::State& state) { forward(state, one.stage, one.problem, one.any_failed); })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

void register_gpu_benchmarks(bool& any_failed) {
  if (!unavailable(Backend::cuda).empty()) return;
  for (const auto& [key, value] : gpu_facts()) benchmark::AddCustomContext(key, value);
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
          add(*stage, "grid", p, any_failed);
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
      add(on_backend(find_stage(number), Backend::cuda), "heads", p, any_failed);
    }
  }
}

}  // namespace flashladder
