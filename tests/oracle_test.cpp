// The oracle is what everything is judged by, so it is judged by something else: hand-computed values,
// properties that follow from the definition, and finite differences for the gradients.
#include <cmath>

#include "catch.hpp"
#include "common/attention/oracle.hpp"
#include "common/check/inputs.hpp"

namespace {

using namespace flashladder;

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST_CASE("one row by hand", "[oracle]") {
  Problem p;
  p.Nq = 1;
  p.Nk = 2;
  p.d = 1;
  // Scores 0 and log 3: probabilities 1/4 and 3/4.
  const Inputs inputs{p, {1}, {0, std::log(3.0f)}, {8, 16}};
  const Result<double> result = oracle_forward(inputs);
  CHECK(std::abs(result.O[0] - 14) < 1e-6);
  CHECK(std::abs(result.L[0] - std::log(4)) < 1e-6);
}

TEST_CASE("causal is aligned at the bottom right", "[oracle]") {
  Problem p;
  p.d = 1;
  p.causal = true;
  SECTION("more keys than queries: the last query sees all") {
    p.Nq = 2;
    p.Nk = 4;
    const Result<double> result = oracle_forward({p, {0, 0}, {0, 0, 0, 0}, {1, 2, 3, 4}});
    CHECK(result.O == std::vector<double>{2, 2.5});
    CHECK(std::abs(result.L[0] - std::log(3)) < 1e-12);
  }
  SECTION("more queries than keys: the first queries see none") {
    p.Nq = 3;
    p.Nk = 1;
    const Result<double> result = oracle_forward({p, {0, 0, 0}, {0}, {7}});
    CHECK(result.O == std::vector<double>{0, 0, 7});
    CHECK(result.L == std::vector<double>{-infinity, -infinity, 0});
    const Gradients<double> gradients = oracle_backward({p, {0, 0, 0}, {2}, {7}}, {1, 1, 1});
    CHECK(gradients.dQ == std::vector<double>{0, 0, 0});
    CHECK(gradients.dV == std::vector<double>{1});
  }
}

TEST_CASE("query heads read the key/value head of their group", "[oracle]") {
  Problem p;
  p.batch = 2;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.d = 1;
  const Result<double> result = oracle_forward({p, std::vector<float>(8), {0, 0, 0, 0}, {1, 2, 3, 4}});
  CHECK(result.O == std::vector<double>{1, 1, 2, 2, 3, 3, 4, 4});
}

/// The scalar sum(dO * O), whose gradients the backward pass computes.
double loss(const Inputs& inputs, const std::vector<float>& dO) {
  const Result<double> result = oracle_forward(inputs);
  double sum = 0;
  for (std::size_t i = 0; i < dO.size(); ++i) sum += static_cast<double>(dO[i]) * result.O[i];
  return sum;
}

TEST_CASE("gradients agree with finite differences", "[oracle]") {
  for (bool causal : {false, true}) {
    for (float scale : {0.0f, 0.7f}) {
      Problem p;
      p.batch = 2;
      p.q_heads = 4;
      p.kv_heads = 2;
      p.Nq = 7;
      p.Nk = 5;  // the first two rows see no key when causal
      p.d = 3;
      p.causal = causal;
      p.scale = scale;
      Inputs inputs = random_inputs(p, 11);
      const std::vector<float> dO = random_output_gradient(p, 12);
      const Gradients<double> gradients = oracle_backward(inputs, dO);
      // Steps that fp32 holds exactly; the error of a central difference is about step^2.
      const float step = 0x1p-9f;
      const auto compare = [&](std::vector<float>& values, const std::vector<double>& gradient) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float at = values[i];
          values[i] = at + step;
          const double up = loss(inputs, dO), above = values[i];
          values[i] = at - step;
          const double down = loss(inputs, dO), below = values[i];
          values[i] = at;
          REQUIRE(std::abs((up - down) / (above - below) - gradient[i]) < 2e-5);
        }
      };
      compare(inputs.Q, gradients.dQ);
      compare(inputs.K, gradients.dK);
      compare(inputs.V, gradients.dV);
    }
  }
}

TEST_CASE("plain computation in fp32 and bf16 is near the oracle, and no nearer than it can be",
          "[oracle]") {
  Problem p;
  p.Nq = p.Nk = 64;
  p.dtype = Dtype::bf16;
  const Inputs inputs = random_inputs(p, 5);
  const Result<double> oracle = oracle_forward(inputs);
  const auto worst = [&](Dtype dtype) {
    const Result<float> plain = plain_forward(inputs, dtype);
    double worst = 0;
    for (std::size_t i = 0; i < plain.O.size(); ++i)
      worst = std::max(worst, std::abs(plain.O[i] - oracle.O[i]));
    return worst;
  };
  CHECK(worst(Dtype::fp32) > 0);
  CHECK(worst(Dtype::fp32) < 2e-6);
  CHECK(worst(Dtype::bf16) > 1e-4);
  CHECK(worst(Dtype::bf16) < 2e-2);
}

}  // namespace
