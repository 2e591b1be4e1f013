// What only a GPU can show: offsets beyond 2^31 elements, the same bits in every run, memory that runs out,
// launches that are refused.
// ctest skips these tests, and says why, where has_gpu finds none.
#include <algorithm>
#include <cmath>
#include <map>

#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"
#include "common/claims/closed_form.hpp"
#include "common/kernel/run_time.hpp"
#include "kernel_folder.hpp"

namespace {

using namespace flashladder;

constexpr std::int64_t beyond =
    (std::int64_t{1} << 31) + 64;  // elements; a 32-bit offset is negative there

/// The last `rows` query rows of the last head of `inputs`, as a problem of their own.
Inputs last_rows(const Inputs& inputs, std::int64_t rows) {
  const Problem& p = inputs.problem;
  Inputs part{p, {}, {}, {}};
  part.problem.batch = part.problem.q_heads = part.problem.kv_heads = 1;
  part.problem.Nq = rows;
  part.Q.assign(inputs.Q.end() - rows * p.d, inputs.Q.end());
  part.K.assign(inputs.K.end() - p.Nk * p.d, inputs.K.end());
  part.V.assign(inputs.V.end() - p.Nk * p.d, inputs.V.end());
  return part;
}

/// A tensor [2, heads, N, d] on the GPU whose second batch entry lies 2^31 elements after the first: 8 GiB
/// of fp32, little of it used.
class FarTensor {
 public:
  FarTensor(Dtype dtype, std::int64_t heads, std::int64_t N, std::int64_t d)
      : dtype_(dtype),
        entry_(heads * N * d),
        memory_(Backend::cuda, (beyond + entry_) * size_of(dtype)),
        tensor_{memory_.data(), dtype, {beyond, N * d, d}} {
    write(std::vector<float>(2 * entry_, NAN));
  }

  const Tensor& tensor() const { return tensor_; }
  void write(const std::vector<float>& values) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry_ * size_of(dtype_)));
    for (std::int64_t b : {0, 1}) {
      for (std::int64_t i = 0; i < entry_; ++i)
        store_as(dtype_, values[b * entry_ + i], &bytes[i * size_of(dtype_)]);
      memory_.upload(b * beyond * size_of(dtype_), bytes.data(), bytes.size());
    }
  }
  std::vector<float> read() const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry_ * size_of(dtype_)));
    std::vector<float> values;
    for (std::int64_t b : {0, 1}) {
      memory_.download(b * beyond * size_of(dtype_), bytes.data(), bytes.size());
      for (std::int64_t i = 0; i < entry_; ++i)
        values.push_back(load_as(dtype_, &bytes[i * size_of(dtype_)]));
    }
    return values;
  }

 private:
  Dtype dtype_;
  std::int64_t entry_;
  BackendMemory memory_;
  Tensor tensor_;
};

/// Small, but for where its second batch entry lies.
Problem far_problem(Dtype dtype) {
  Problem p;
  p.batch = 2;
  p.q_heads = p.kv_heads = 2;
  p.Nq = 70;
  p.Nk = 97;
  p.causal = true;
  p.dtype = dtype;
  return p;
}

TEST_CASE("GPU: the elements of a tensor span more than 2^31", "[gpu]") {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    const Problem p = far_problem(dtype);
    const Inputs inputs = random_inputs(p, 1);
    const Expected expected = expect_forward(inputs, dtype);
    FarTensor Q(dtype, p.q_heads, p.Nq, p.d), K(dtype, p.kv_heads, p.Nk, p.d),
        V(dtype, p.kv_heads, p.Nk, p.d), O(dtype, p.q_heads, p.Nq, p.d);
    BackendMemory L(Backend::cuda, p.batch * p.q_heads * p.Nq * 4);
    Q.write(inputs.Q), K.write(inputs.K), V.write(inputs.V);
    int tested = 0;
    for (const Stage* stage : gpu_stages()) {
      if (stage->forward == nullptr || !stage->supports.dtype(dtype)) continue;
      ++tested;
      INFO(label(*stage));
      Result<float> result{std::vector<float>(p.batch * p.q_heads * p.Nq * p.d, NAN),
                           std::vector<float>(p.batch * p.q_heads * p.Nq, NAN)};
      O.write(result.O);
      L.upload(0, result.L.data(), L.bytes());
      Workspace workspace(free_memory(Backend::cuda));
      run_forward(*stage, {.problem = p,
                           .Q = Q.tensor(),
                           .K = K.tensor(),
                           .V = V.tensor(),
                           .O = O.tensor(),
                           .L = named_tensor("L").contiguous(p, L.data()),
                           .workspace = workspace});
      synchronise(Backend::cuda);
      result.O = O.read();
      L.download(0, result.L.data(), L.bytes());
      const Verdict verdict = check_forward(result, expected);
      CHECK(verdict.why == "");
      CHECK(verdict.passed);
    }
    CHECK(tested > 0);
  }
}

TEST_CASE("GPU: the elements of a gradient span more than 2^31", "[gpu]") {
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    const Problem p = far_problem(dtype);
    const Inputs inputs = random_inputs(p, 1);
    const Result<float> forward = plain_forward(inputs, dtype);
    const std::vector<float> grad = random_output_gradient(p, 2);
    const ExpectedGradients expected = expect_backward(inputs, forward, grad, dtype);
    const auto of_rows = [&] { return FarTensor(dtype, p.q_heads, p.Nq, p.d); };
    const auto of_keys = [&] { return FarTensor(dtype, p.kv_heads, p.Nk, p.d); };
    FarTensor Q = of_rows(), K = of_keys(), V = of_keys(), O = of_rows(), dO = of_rows(), dQ = of_rows(),
              dK = of_keys(), dV = of_keys();
    BackendMemory L(Backend::cuda, p.batch * p.q_heads * p.Nq * 4);
    Q.write(inputs.Q), K.write(inputs.K), V.write(inputs.V), O.write(forward.O), dO.write(grad);
    L.upload(0, forward.L.data(), L.bytes());
    int tested = 0;
    for (const Stage* stage : gpu_stages()) {
      // Those that are given L alone.
      if (stage->backward == nullptr || !stage->supports.dtype(dtype) || stage->saved != Saved::L) continue;
      ++tested;
      INFO(label(*stage));
      for (FarTensor* one : {&dQ, &dK, &dV})
        one->write(std::vector<float>(2 * p.q_heads * std::max(p.Nq, p.Nk) * p.d, NAN));
      Workspace workspace(free_memory(Backend::cuda));
      run_backward(*stage, {.problem = p,
                            .Q = Q.tensor(),
                            .K = K.tensor(),
                            .V = V.tensor(),
                            .O = O.tensor(),
                            .L = named_tensor("L").contiguous(p, L.data()),
                            .dO = dO.tensor(),
                            .dQ = dQ.tensor(),
                            .dK = dK.tensor(),
                            .dV = dV.tensor(),
                            .workspace = workspace});
      synchronise(Backend::cuda);
      const Verdict verdict = check_backward({dQ.read(), dK.read(), dV.read()}, expected);
      CHECK(verdict.why == "");
      CHECK(verdict.passed);
    }
    CHECK(tested > 0);
  }
}

/// Runs `run` `runs` times and says in how many of them the bits of the tensors `names` were others than in
/// the first.
template <class Run>
int different_runs(Run& run, const std::vector<const char*>& names, int runs = 250) {
  std::vector<std::vector<std::byte>> first;
  int different = 0;
  for (int i = 0; i < runs; ++i) {
    run.poison();
    Workspace workspace(free_memory(Backend::cuda));
    run.run(workspace);
    if (i == 0) {
      REQUIRE(run.defect() == "");  // all was written, and what no later run writes is other bits
      for (const char* name : names) first.push_back(run.bytes(name));
      continue;
    }
    different += !std::ranges::equal(
        names, first, [&](const char* name, const auto& bytes) { return run.bytes(name) == bytes; });
  }
  return different;
}

TEST_CASE("GPU: 250 runs give the same bits, but for sums in any order", "[gpu]") {
  for (std::int64_t d : {32, 64, 96, 128, 192, 256}) {
    for (bool causal : {false, true}) {
      Problem p;
      const bool more = d == 64 && causal;
      p.batch = more ? 2 : 1;
      p.kv_heads = more ? 3 : 1;
      p.q_heads = 2 * p.kv_heads;
      p.Nq = 517;
      p.Nk = 613;
      p.d = d;
      p.causal = causal;
      std::map<Dtype, Result<float>> saved;
      for (const Stage* stage : gpu_stages()) {
        if (!stage->supports.head_dim(d)) continue;
        p.dtype = d >= 96 ? stage->supports.dtypes.back() : stage->supports.dtypes.front();
        INFO(label(*stage) << ", " << to_string(p));
        const Inputs inputs = random_inputs(p, 1);
        if (stage->forward != nullptr) {
          ForwardRun run(*stage, inputs);
          CHECK(different_runs(run, {"O", "L"}) == 0);
        }
        if (stage->backward == nullptr) continue;
        const Dtype dtype = computing_dtype(*stage, inputs.problem.dtype);
        if (!saved.contains(dtype)) saved[dtype] = plain_forward(inputs, dtype);
        BackwardRun run(*stage, inputs, saved[dtype], random_output_gradient(inputs.problem, 2));
        std::vector<const char*> names = {"dK", "dV"};
        if (!adds_in_any_order(*stage, p)) names.push_back("dQ");
        CHECK(different_runs(run, names) == 0);
      }
    }
  }
}

TEST_CASE("GPU: 250 runs of more row tiles than multiprocessors give the same bits", "[long-gpu]") {
  // A block that draws row tiles has several, and it depends on chance which.
  int tested = 0;
  for (const Stage* stage : gpu_stages()) {
    if (stage->gpu != Gpu::hopper || stage->forward == nullptr) continue;
    for (int d : {64, 128, 256}) {
      for (bool causal : {false, true}) {
        Problem p;
        p.q_heads = 80;
        p.kv_heads = 40;
        p.Nq = 470;
        p.Nk = 550;
        p.d = d;
        p.causal = causal;
        p.dtype = causal ? Dtype::bf16 : Dtype::fp16;
        const Claim* claim = claim_of(*stage);
        const ClosedForm* draws = claim->forward.find("atomics");
        if (!stage->supports.head_dim(d) || draws == nullptr || draws->value(claim->symbols(p)) == 0)
          continue;
        INFO(label(*stage) << ", " << to_string(p));
        ForwardRun run(*stage, random_inputs(p, 1));
        CHECK(different_runs(run, {"O", "L"}) == 0);
        ++tested;
      }
    }
  }
  CHECK(tested >= 6);
}

TEST_CASE("GPU: 250 runs of more blocks than run at a time give the same gradients", "[long-gpu]") {
  // The 5 tiles of 127 heads' keys are dealt out to 3 splits: 381 blocks of stage 39. An H200's 132
  // multiprocessors have two of them each at d = 64, and one at d = 128.
  int tested = 0;
  for (const Stage* stage : gpu_stages()) {
    if (stage->backward == nullptr || stage->supports.dtype(Dtype::fp32)) continue;
    for (bool causal : {false, true}) {
      for (Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
        Problem p;
        p.q_heads = p.kv_heads = 127;
        p.Nq = 70;
        p.Nk = 520;
        p.d = causal == (dtype == Dtype::bf16) ? 128 : 64;
        p.causal = causal;
        p.dtype = dtype;
        if (adds_in_any_order(*stage, p)) continue;
        INFO(label(*stage) << ", " << to_string(p));
        const Inputs inputs = random_inputs(p, 1);
        BackwardRun run(*stage, inputs, plain_forward(inputs, dtype), random_output_gradient(p, 2));
        CHECK(different_runs(run, {"dQ", "dK", "dV"}) == 0);
        ++tested;
      }
    }
  }
  CHECK(tested >= 4);
}

TEST_CASE("GPU: what runs are compared by can differ", "[gpu]") {
  // More than a hundred tiles of keys add to each element of dQ in any order: that two runs round all of
  // 16,384 sums alike is as good as impossible.
  int tested = 0;
  for (const Stage* stage : gpu_stages()) {
    for (bool causal : {false, true}) {
      Problem p;
      p.q_heads = p.kv_heads = 4;
      p.Nq = 64;
      p.Nk = 16384;
      p.d = 64;
      p.causal = causal;
      p.dtype = stage->supports.dtypes.front();
      if (stage->backward == nullptr || !adds_in_any_order(*stage, p)) continue;
      INFO(label(*stage) << ", " << to_string(p));
      const Inputs inputs = random_inputs(p, 1);
      BackwardRun run(*stage, inputs, plain_forward(inputs, p.dtype), random_output_gradient(p, 2));
      CHECK(different_runs(run, {"dQ"}, 20) > 0);
      ++tested;
    }
  }
  CHECK(tested >= 6);
}

TEST_CASE("GPU: the scores of a problem are more than 2^31", "[gpu]") {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 33000;  // 2 * 33000^2 = 2.2e9
  p.d = 32;
  const Inputs random = random_inputs(p, 2);
  for (const Stage* stage : gpu_stages()) {
    if (stage->forward == nullptr) continue;
    INFO(label(*stage));
    const Inputs inputs = for_stage(*stage, random);
    const Inputs part = last_rows(inputs, 32);
    const Expected expected = expect_forward(part, computing_dtype(*stage, inputs.problem.dtype));
    ForwardRun run(*stage, inputs);
    Workspace workspace(free_memory(Backend::cuda));
    run.run(workspace);
    if (stage->number == 10) CHECK(workspace.peak_bytes() > 2 * 4 * beyond);
    Result<float> result = run.result();
    result.O.erase(result.O.begin(), result.O.end() - part.problem.Nq * p.d);
    result.L.erase(result.L.begin(), result.L.end() - part.problem.Nq);
    const Verdict verdict = check_forward(result, expected);
    CHECK(verdict.why == "");
    CHECK(verdict.passed);
  }
}

TEST_CASE("GPU: what does not fit is said before anything is allocated, and nothing is leaked", "[gpu]") {
  Problem p;
  p.Nq = p.Nk = 300000;  // S and P would take 720 GB
  p.d = 32;
  Inputs inputs{p, std::vector<float>(p.Nq * p.d), std::vector<float>(p.Nk * p.d),
                std::vector<float>(p.Nk * p.d)};
  const Stage& stage = on_backend(find_stage(10), Backend::cuda);
  ForwardRun run(stage, inputs);
  const std::int64_t free_before = free_memory(Backend::cuda);
  Workspace workspace(free_before);
  std::string why;
  try {
    run.run(workspace);
  } catch (const OutOfMemory& error) {
    why = error.what();
  }
  CHECK(why.find("MiB more are needed") != why.npos);
  CHECK(why.find("MiB are free") != why.npos);
  CHECK(workspace.bytes_in_use() == 0);
  CHECK(std::abs(free_memory(Backend::cuda) - free_before) < (64 << 20));
  // The next launch does not find an error that is none of its own.
  Problem small;
  small.Nq = small.Nk = 40;
  const Inputs right = random_inputs(small, 1);
  CHECK(run_and_check(stage, right, Layout::contiguous, expect_forward(right, Dtype::fp32)).passed);
}

TEST_CASE("GPU: stage 81 compiles a kernel for a new combination, and once", "[gpu]") {
  const KernelFolder folder;
  REQUIRE(why_no_compiler(gpu_architecture()) == "");
  Problem p;
  p.Nq = p.Nk = 200;
  p.dtype = Dtype::bf16;
  p.causal = p.alibi = p.sinks = true;
  p.softcap = 7;
  const Stage& stage = on_backend(find_stage(81), Backend::cuda);
  const Inputs inputs = random_inputs(p, 1);
  const Expected expected = expect_forward(inputs, p.dtype);
  const int before = compiled_at_run_time();
  for (int call = 0; call < 2; ++call) {
    CHECK(run_and_check(stage, inputs, Layout::contiguous, expected).passed);
    CHECK(compiled_at_run_time() == before + 1);
  }
  CHECK(folder.files().size() == 1);
}

TEST_CASE("GPU: a refused launch names its stage, a wrong head dimension what is supported", "[gpu]") {
  Problem p;
  p.batch = 70000;  // more than a grid may have in z
  p.d = 32;
  const Inputs inputs = random_inputs(p, 1);
  int refused = 0;
  for (const Stage* stage : gpu_stages()) {
    if (stage->forward == nullptr) continue;
    const Inputs own = for_stage(*stage, inputs);
    ForwardRun run(*stage, own);
    run.poison();
    Workspace workspace(free_memory(Backend::cuda));
    std::string why;
    try {
      run.run(workspace);
    } catch (const Error& error) {
      why = error.what();
    }
    INFO(label(*stage) << ": " << why);
    if (why.empty()) {  // whose grid has one axis
      CHECK(run.defect() == "");
    } else {
      CHECK(why.starts_with("stage " + label(*stage) + ": "));
      ++refused;
    }
    CHECK(workspace.bytes_in_use() == 0);
  }
  CHECK(refused > 0);
  p.batch = 1;
  p.d = 44;
  const Inputs odd = random_inputs(p, 1);
  for (const Stage* stage : gpu_stages()) {
    if (stage->forward == nullptr) continue;
    const Inputs own = for_stage(*stage, odd);
    ForwardRun run(*stage, own);
    Workspace workspace(free_memory(Backend::cuda));
    CHECK_THROWS_AS(run.run(workspace), UsageError);
  }
}

}  // namespace
