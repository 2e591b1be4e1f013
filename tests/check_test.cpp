// The comparator itself: it fails closed. That the shipped inputs and tolerances reject wrong kernels is
// the subject of wrong_outputs_test.cpp; here are the rules one by one.
#include <cmath>
#include <limits>

#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

namespace {

using namespace flashladder;

constexpr float infinity = std::numeric_limits<float>::infinity();

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

/// A small causal problem whose first two rows see no key, its bounds, and a right result.
struct Fixture {
  Inputs inputs;
  Expected expected;
  Result<float> right;

  Fixture() {
    Problem p;
    p.q_heads = p.kv_heads = 2;
    p.Nq = 6;
    p.Nk = 4;
    p.d = 8;
    p.causal = true;
    inputs = random_inputs(p, 7);
    expected = expect_forward(inputs, Dtype::fp32);
    right = plain_forward(inputs, Dtype::fp32);
  }
  std::string why(const Result<float>& result) const {
    const Verdict verdict = check_forward(result, expected);
    CHECK(verdict.passed == verdict.why.empty());
    return verdict.why;
  }
};

TEST_CASE("a verdict starts as failed", "[check]") {
  CHECK_FALSE(Verdict{}.passed);
}

TEST_CASE("a right result passes, each kind of wrong one fails with its reason", "[check]") {
  const Fixture f;
  CHECK(f.why(f.right) == "");
  CHECK(f.right.L[0] == -infinity);
  auto changed = [&](auto change) {
    Result<float> result = f.right;
    change(result);
    return f.why(result);
  };
  using R = Result<float>;
  CHECK(contains(changed([](R& r) { r.O[40] = NAN; }), "O[40] is nan"));
  CHECK(contains(changed([](R& r) { r.O[40] = infinity; }), "O[40] is inf"));
  CHECK(contains(changed([](R& r) { r.O[0] = NAN; }), "O[0] is nan"));
  // NaN must not be hidden by a larger error before or after it.
  CHECK(contains(changed([](R& r) { r.O[3] = 1e9f, r.O[40] = NAN, r.O[41] = 1e9f; }), "O[40] is nan"));
  CHECK(contains(changed([](R& r) { r.O[40] += 0.01f; }), "O[40]"));
  CHECK(contains(changed([](R& r) { r.O.pop_back(); }), "wrong number of elements"));
  CHECK(contains(changed([](R& r) { r.L.pop_back(); }), "wrong number of elements"));
  CHECK(contains(changed([](R& r) { r.L[5] += 1e-4f; }), "L[5]"));
  CHECK(contains(changed([](R& r) { r.L[5] = NAN; }), "L[5] is nan"));
  CHECK(contains(changed([](R& r) { r.L[5] = -infinity; }), "L[5] is -inf"));
  CHECK(contains(changed([](R& r) { r.L[0] = infinity; }), "L[0] is inf"));
  CHECK(contains(changed([](R& r) { r.L[0] = -1e30f; }), "L[0]"));  // a finite "-inf"
  CHECK(contains(changed([](R& r) { r.L[0] = NAN; }), "L[0] is nan"));
  CHECK(contains(changed([](R& r) { r.L[0] = 0; }), "L[0]"));
}

TEST_CASE("many small errors fail where no single one does", "[check]") {
  Problem p;
  p.Nq = p.Nk = 512;
  const Inputs inputs = random_inputs(p, 8);
  const Expected expected = expect_forward(inputs, Dtype::bf16);
  Result<float> result = plain_forward(inputs, Dtype::bf16);
  result.L.assign(expected.oracle.L.begin(), expected.oracle.L.end());
  REQUIRE(check_forward(result, expected).passed);
  for (std::size_t i = 0; i < result.O.size(); ++i) {
    const double sign = i % 2 == 0 ? 1 : -1;
    result.O[i] = static_cast<float>(expected.oracle.O[i] + sign * 0.9 * expected.O.max_abs);
  }
  CHECK(contains(check_forward(result, expected).why, "2-norm"));
}

TEST_CASE("the bounds come from the plain computation, and NaN in them fails everything", "[check]") {
  const std::vector<float> same = {1, 2}, off = {1, 2.5}, worse = {1, NAN};
  const Bound exact = make_bound({1, 2}, {&same}, Dtype::fp32);
  CHECK(exact.norm == 2 * 0x1p-24 * std::sqrt(5.0));
  CHECK(exact.max_abs < 1e-6);
  const Bound coarse = make_bound({1, 2}, {&off, &same}, Dtype::fp32);
  CHECK(coarse.norm == 1);
  CHECK(coarse.max_abs >= 1);
  for (const Bound& bound : {make_bound({1, 2}, {&worse, &same}, Dtype::fp32),
                             make_bound({1, 2}, {&same, &worse}, Dtype::fp32)}) {
    Fixture f;
    f.expected.O = bound;
    CHECK_FALSE(f.why(f.right).empty());
  }
}

TEST_CASE("against the stage before: the sum of both bounds", "[check]") {
  const Fixture f;
  Result<float> other = f.right;
  CHECK(check_against(f.right, f.expected, other, f.expected).passed);
  other.O[20] += static_cast<float>(3 * f.expected.O.max_abs);
  CHECK_FALSE(check_against(f.right, f.expected, other, f.expected).passed);
  other.O[20] = NAN;
  CHECK_FALSE(check_against(f.right, f.expected, other, f.expected).passed);
  CHECK_FALSE(
      check_against(other, f.expected, other, f.expected).passed);  // NaN on both sides is no agreement
}

TEST_CASE("gradients by the same rule", "[check]") {
  const Fixture f;
  const std::vector<float> dO = random_output_gradient(f.inputs.problem, 3);
  const ExpectedGradients expected = expect_backward(f.inputs, f.right, dO, Dtype::fp32);
  const Gradients<float> right = plain_backward(f.inputs, f.right, dO, Dtype::fp32);
  CHECK(check_backward(right, expected).passed);
  for (auto member : {&Gradients<float>::dQ, &Gradients<float>::dK, &Gradients<float>::dV}) {
    for (float wrong : {NAN, infinity, 1.0f}) {
      Gradients<float> result = right;
      (result.*member)[9] += wrong;
      CHECK_FALSE(check_backward(result, expected).passed);
    }
    Gradients<float> zeros = right;
    std::fill((zeros.*member).begin(), (zeros.*member).end(), 0.0f);
    CHECK_FALSE(check_backward(zeros, expected).passed);
  }
}

// Stages that misbehave, for the runner.
void writes_nothing(const Forward&) {}
void forgets_the_last_row(const Forward& call) {
  const Problem& p = call.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const ForwardHead head = call.head(b, h);
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        head.L[i] = 0;
        for (std::int64_t c = 0; i + 1 < p.Nq && c < p.d; ++c) head.O[i][c] = 0;
      }
    }
  }
}
void writes_past_its_row(const Forward& call) {
  forgets_the_last_row(call);
  const Problem& p = call.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      for (std::int64_t c = 0; c <= p.d; ++c) call.head(b, h).O[p.Nq - 1][c] = 0;
    }
  }
}

TEST_CASE("the runner finds what values alone do not show", "[check]") {
  const Fixture f;
  const auto why = [&](void (*forward)(const Forward&)) {
    const Stage stage{.number = 99,
                      .name = "",
                      .title = "",
                      .idea = "",
                      .claim = "",
                      .before = 99,
                      .supports = {.dtypes = fp32_only},
                      .forward = forward};
    return run_and_check(stage, f.inputs, Layout::padded, f.expected).why;
  };
  CHECK(why(writes_nothing) == "O was never written at [0, 0, 0, 0]");
  CHECK(why(forgets_the_last_row) == "O was never written at [0, 0, 5, 0]");
  CHECK(contains(why(writes_past_its_row), "O was written outside its rows"));
}

TEST_CASE("inputs are reproducible, and differ between heads, batches and seeds", "[check]") {
  Problem p;
  p.batch = p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 9;
  p.d = 4;
  for (const Family& family : input_families()) {
    INFO(family.name);
    const Inputs inputs = make_inputs(family, p, 1);
    CHECK(inputs.Q == make_inputs(family, p, 1).Q);
    CHECK(inputs.K != make_inputs(family, p, 2).K);
    for (const auto* values : {&inputs.Q, &inputs.K, &inputs.V}) {
      CHECK(std::ranges::all_of(*values, [](float x) { return std::isfinite(x); }));
      const std::size_t head = values->size() / 4;
      for (std::size_t g = 1; g < 4; ++g) {
        CHECK_FALSE(std::equal(values->begin(), values->begin() + head, values->begin() + g * head));
      }
    }
  }
  p.dtype = Dtype::bf16;
  for (float x : random_inputs(p, 1).Q) CHECK(round_to(Dtype::bf16, x) == x);
}

}  // namespace
