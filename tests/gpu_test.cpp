// What only a GPU can show: offsets beyond 2^31 elements, memory that runs out, launches that are refused.
// ctest skips these tests, and says why, where has_gpu finds none.
#include <algorithm>
#include <cmath>

#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

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

/// The elements of one batch entry of a tensor, as the dtype has them.
std::vector<std::byte> encoded(const std::vector<float>& values, std::int64_t from, std::int64_t count,
                               Dtype dtype) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(dtype)));
  for (std::int64_t i = 0; i < count; ++i) store_as(dtype, values[from + i], &bytes[i * size_of(dtype)]);
  return bytes;
}

TEST_CASE("GPU: the elements of a tensor span more than 2^31", "[gpu]") {
  Problem p;
  p.batch = 2;
  p.q_heads = p.kv_heads = 2;
  p.Nq = 70;
  p.Nk = 97;
  p.causal = true;
  for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    p.dtype = dtype;
    const Inputs inputs = random_inputs(p, 1);
    const Expected expected = expect_forward(inputs, dtype);
    // The second batch entry lies 2^31 elements after the first: 8 GiB of fp32 for each tensor, little of
    // it used.
    const auto bytes = [&](std::int64_t elements) { return elements * size_of(dtype); };
    const std::int64_t entry_q = p.q_heads * p.Nq * p.d, entry_k = p.kv_heads * p.Nk * p.d;
    BackendMemory Q(Backend::cuda, bytes(beyond + entry_q)), K(Backend::cuda, bytes(beyond + entry_k)),
        V(Backend::cuda, bytes(beyond + entry_k)), O(Backend::cuda, bytes(beyond + entry_q)),
        L(Backend::cuda, p.batch * p.q_heads * p.Nq * 4);
    for (std::int64_t b : {0, 1}) {
      Q.upload(bytes(b * beyond), encoded(inputs.Q, b * entry_q, entry_q, dtype).data(), bytes(entry_q));
      K.upload(bytes(b * beyond), encoded(inputs.K, b * entry_k, entry_k, dtype).data(), bytes(entry_k));
      V.upload(bytes(b * beyond), encoded(inputs.V, b * entry_k, entry_k, dtype).data(), bytes(entry_k));
    }
    const auto tensor = [&](const BackendMemory& memory, std::int64_t rows) {
      return Tensor{memory.data(), dtype, {beyond, rows * p.d, p.d}};
    };
    int tested = 0;
    for (const Stage* stage : cuda_stages()) {
      if (stage->forward == nullptr || !stage->supports.dtype(dtype)) continue;
      ++tested;
      INFO(label(*stage));
      Result<float> result{std::vector<float>(2 * entry_q, NAN),
                           std::vector<float>(2 * p.q_heads * p.Nq, NAN)};
      for (std::int64_t b : {0, 1})
        O.upload(bytes(b * beyond), encoded(result.O, b * entry_q, entry_q, dtype).data(), bytes(entry_q));
      L.upload(0, result.L.data(), L.bytes());
      Workspace workspace(free_memory(Backend::cuda));
      run_forward(*stage, {p, tensor(Q, p.Nq), tensor(K, p.Nk), tensor(V, p.Nk), tensor(O, p.Nq),
                           static_cast<float*>(L.data()), workspace});
      synchronise(Backend::cuda);
      std::vector<std::byte> entry(static_cast<std::size_t>(bytes(entry_q)));
      for (std::int64_t b : {0, 1}) {
        O.download(bytes(b * beyond), entry.data(), bytes(entry_q));
        for (std::int64_t i = 0; i < entry_q; ++i)
          result.O[b * entry_q + i] = load_as(dtype, &entry[bytes(i)]);
      }
      L.download(0, result.L.data(), L.bytes());
      const Verdict verdict = check_forward(result, expected);
      CHECK(verdict.why == "");
      CHECK(verdict.passed);
    }
    CHECK(tested > 0);
  }
}

TEST_CASE("GPU: the scores of a problem are more than 2^31", "[gpu]") {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 33000;  // 2 * 33000^2 = 2.2e9
  p.d = 32;
  const Inputs random = random_inputs(p, 2);
  for (const Stage* stage : cuda_stages()) {
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

TEST_CASE("GPU: a refused launch names its stage, a wrong head dimension what is supported", "[gpu]") {
  Problem p;
  p.batch = 70000;  // more than a grid may have in z
  p.d = 32;
  const Inputs inputs = random_inputs(p, 1);
  for (const Stage* stage : cuda_stages()) {
    if (stage->forward == nullptr) continue;
    const Inputs own = for_stage(*stage, inputs);
    ForwardRun run(*stage, own);
    Workspace workspace(free_memory(Backend::cuda));
    std::string why;
    try {
      run.run(workspace);
    } catch (const Error& error) {
      why = error.what();
    }
    INFO(why);
    if (stage->number < 19) {  // 19 has all its blocks in a row, of which there may be two thousand million
      CHECK(why.starts_with("stage " + label(*stage) + ": "));
    } else {
      CHECK(why == "");
    }
    CHECK(workspace.bytes_in_use() == 0);
  }
  p.batch = 1;
  p.d = 48;
  const Inputs odd = random_inputs(p, 1);
  for (const Stage* stage : cuda_stages()) {
    if (stage->forward == nullptr) continue;
    const Inputs own = for_stage(*stage, odd);
    ForwardRun run(*stage, own);
    Workspace workspace(free_memory(Backend::cuda));
    CHECK_THROWS_AS(run.run(workspace), UsageError);
  }
}

}  // namespace
