#include "common/check/check.hpp"

#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

namespace flashladder {
namespace {

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", x);
  return text;
}

/// The largest absolute difference, where it is, and the 2-norm of the difference. NaN is larger than any
/// number.
struct Difference {
  double max_abs = 0;
  std::size_t at = 0;
  double norm = 0;
};

template <class A, class B>
Difference difference(const std::vector<A>& a, const std::vector<B>& b) {
  Difference result;
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double delta = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    squares += delta * delta;
    // Negated, so that a NaN is taken; once it is in, it stays.
    if (!(delta <= result.max_abs) && !std::isnan(result.max_abs)) {
      result.max_abs = delta;
      result.at = i;
    }
  }
  result.norm = std::sqrt(squares);
  return result;
}

constexpr const char* no_yardstick =
    " cannot be judged: on these inputs the plain computation itself gives Inf or NaN";

/// "" when `a` is within `bound` of `b`; else what is wrong, where. Written so that NaN fails every
/// comparison.
template <class A, class B>
std::string compare(const char* name, const std::vector<A>& a, const std::vector<B>& b, const Bound& bound,
                    const char* other, Verdict& verdict) {
  if (a.size() != b.size()) return std::string(name) + " has the wrong number of elements";
  const Difference found = difference(a, b);
  // An infinite bound would let everything pass.
  if (!std::isfinite(bound.max_abs) || !std::isfinite(bound.norm)) return std::string(name) + no_yardstick;
  if (!(found.max_abs <= verdict.error)) {
    verdict.error = found.max_abs;
    verdict.allowed = bound.max_abs;
  }
  if (!(found.max_abs <= bound.max_abs)) {
    return std::string(name) + "[" + std::to_string(found.at) + "] is " +
           number(static_cast<double>(a[found.at])) + ", " + other + " " +
           number(static_cast<double>(b[found.at])) + ": off by " + number(found.max_abs) + ", allowed " +
           number(bound.max_abs);
  }
  if (!(found.norm <= bound.norm)) {
    return std::string(name) + " is off by " + number(found.norm) + " in the 2-norm, allowed " +
           number(bound.norm);
  }
  return "";
}

/// "" when L matches: -inf exactly where `other` has it, else within `tolerance`.
template <class B>
std::string compare_L(const std::vector<float>& L, const std::vector<B>& other, double tolerance,
                      const char* name) {
  if (L.size() != other.size()) return "L has the wrong number of elements";
  if (!std::isfinite(tolerance)) return std::string("L") + no_yardstick;
  for (std::size_t i = 0; i < L.size(); ++i) {
    const double expected = static_cast<double>(other[i]), got = static_cast<double>(L[i]);
    const bool right = std::isinf(expected) ? got == expected : std::abs(got - expected) <= tolerance;
    if (!right) {
      return "L[" + std::to_string(i) + "] is " + number(got) + ", " + name + " " + number(expected) +
             ": off by " + number(std::abs(got - expected)) + ", allowed " + number(tolerance);
    }
  }
  return "";
}

Verdict finish(Verdict verdict, const std::string& why) {
  verdict.why = why;
  verdict.passed = why.empty();
  return verdict;
}

/// The larger of the two; NaN is larger than any number, and makes every comparison with the bound fail.
double worse(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace

Bound make_bound(const std::vector<double>& oracle, const std::vector<const std::vector<float>*>& plains,
                 Dtype dtype) {
  double error = 0, error_norm = 0;
  for (const std::vector<float>* plain : plains) {
    const Difference found = difference(*plain, oracle);
    error = worse(error, found.max_abs);
    error_norm = worse(error_norm, found.norm);
  }
  double rounding = 0, squares = 0;
  for (double x : oracle) {
    const float shifted = round_to(dtype, round_to(dtype, static_cast<float>(x)) + 0.3f);
    rounding = std::max(rounding, std::abs(static_cast<double>(round_to(dtype, shifted - 0.3f)) - x));
    squares += x * x;
  }
  const double storing = unit_roundoff(dtype) * std::sqrt(squares);
  return {2 * error + 2 * rounding, 2 * worse(error_norm, storing)};
}

namespace {

/// What all the plain ways give; f computes one of them.
template <class F>
auto all_ways(F f) {
  std::vector<decltype(f(plain_ways[0]))> results;
  results.reserve(std::size(plain_ways));
  for (PlainWay way : plain_ways) results.push_back(f(way));
  return results;
}

template <class R>
Bound bound_of(const std::vector<double>& oracle, const std::vector<R>& plains,
               std::vector<float> R::*tensor, Dtype dtype) {
  std::vector<const std::vector<float>*> tensors;
  tensors.reserve(plains.size());
  for (const R& plain : plains) tensors.push_back(&(plain.*tensor));
  return make_bound(oracle, tensors, dtype);
}

}  // namespace

Expected expect_forward(const Inputs& inputs, Dtype dtype) {
  const auto plain = [&](Dtype precision) {
    return all_ways([&](PlainWay way) { return plain_forward(inputs, precision, way); });
  };
  Expected expected{dtype, oracle_forward(inputs), {}, 1e-5};
  const auto plains = plain(dtype);
  expected.O = bound_of(expected.oracle.O, plains, &Result<float>::O, dtype);
  std::vector<Result<float>> in_fp32 = dtype == Dtype::fp32 ? plains : plain(Dtype::fp32);
  if (dtype != Dtype::fp32) in_fp32.push_back(tensor_core_forward(inputs));
  for (const Result<float>& fp32 : in_fp32) {
    for (std::size_t i = 0; i < fp32.L.size(); ++i) {
      const double right = expected.oracle.L[i], got = fp32.L[i];
      // -inf against -inf, a row that sees no key, is no error.
      if (!(std::isinf(right) && got == right)) expected.L = worse(expected.L, 2 * std::abs(got - right));
    }
  }
  return expected;
}

Verdict check_forward(const Result<float>& result, const Expected& expected) {
  Verdict verdict;
  std::string why = compare("O", result.O, expected.oracle.O, expected.O, "the oracle says", verdict);
  if (why.empty()) why = compare_L(result.L, expected.oracle.L, expected.L, "the oracle says");
  return finish(verdict, why);
}

Verdict check_against(const Result<float>& result, const Expected& expected, const Result<float>& before,
                      const Expected& expected_before) {
  Verdict verdict;
  const Bound sum{expected.O.max_abs + expected_before.O.max_abs, expected.O.norm + expected_before.O.norm};
  std::string why = compare("O", result.O, before.O, sum, "the stage before says", verdict);
  if (why.empty())
    why = compare_L(result.L, before.L, expected.L + expected_before.L, "the stage before says");
  return finish(verdict, why);
}

namespace {

/// `oracle`, with the bounds that plain computations from what was saved give.
/// @param in_fp32  for 16-bit inputs: O and L for those whose scores stay fp32
ExpectedGradients expect_gradients(Gradients<double> oracle, const Inputs& inputs,
                                   const Result<float>& saved, const Result<float>& in_fp32,
                                   const std::vector<float>& dO, Dtype dtype) {
  ExpectedGradients expected{std::move(oracle), {}, {}, {}};
  auto plains = all_ways([&](PlainWay way) { return plain_backward(inputs, saved, dO, dtype, way); });
  if (dtype != Dtype::fp32) {
    // L was added up from the first term on, and so would hide what such scores are off by.
    plains.push_back(
        plain_backward(inputs, in_fp32, dO, Dtype::fp32, {.descending = true, .fused = false}));
    plains.push_back(tensor_core_backward(inputs, in_fp32, dO));
  }
  expected.dQ = bound_of(expected.oracle.dQ, plains, &Gradients<float>::dQ, dtype);
  expected.dK = bound_of(expected.oracle.dK, plains, &Gradients<float>::dK, dtype);
  expected.dV = bound_of(expected.oracle.dV, plains, &Gradients<float>::dV, dtype);
  return expected;
}

}  // namespace

ExpectedGradients expect_backward(const Inputs& inputs, const Result<float>& saved,
                                  const std::vector<float>& dO, Dtype dtype) {
  return expect_gradients(oracle_backward(inputs, dO), inputs, saved,
                          dtype == Dtype::fp32 ? saved : saved_forward(inputs), dO, dtype);
}

ExpectedGradients expect_backward_part(const Inputs& inputs, const Result<float>& saved,
                                       const std::vector<float>& dO, Dtype dtype) {
  return expect_gradients(oracle_backward_from(inputs, saved, dO), inputs, saved, saved, dO, dtype);
}

Verdict check_backward(const Gradients<float>& result, const ExpectedGradients& expected) {
  Verdict verdict;
  std::string why = compare("dQ", result.dQ, expected.oracle.dQ, expected.dQ, "the oracle says", verdict);
  if (why.empty())
    why = compare("dK", result.dK, expected.oracle.dK, expected.dK, "the oracle says", verdict);
  if (why.empty())
    why = compare("dV", result.dV, expected.oracle.dV, expected.dV, "the oracle says", verdict);
  return finish(verdict, why);
}

Verdict check_backward_against(const Gradients<float>& result, const ExpectedGradients& expected,
                               const Gradients<float>& before, const ExpectedGradients& expected_before) {
  Verdict verdict;
  std::string why;
  const auto add = [&](const char* name, std::vector<float> Gradients<float>::*tensor,
                       Bound ExpectedGradients::*bound) {
    const Bound one = expected.*bound, other = expected_before.*bound;
    if (why.empty())
      why = compare(name, result.*tensor, before.*tensor,
                    Bound{one.max_abs + other.max_abs, one.norm + other.norm}, "the stage before says",
                    verdict);
  };
  add("dQ", &Gradients<float>::dQ, &ExpectedGradients::dQ);
  add("dK", &Gradients<float>::dK, &ExpectedGradients::dK);
  add("dV", &Gradients<float>::dV, &ExpectedGradients::dV);
  return finish(verdict, why);
}

namespace {

/// What a run left behind besides values: a defect explains more than the wrong value it causes.
template <class Run>
Verdict with_defects(Verdict verdict, const Run& run, const Workspace& workspace) {
  if (const std::string why = run.defect(); !why.empty()) verdict = finish(verdict, why);
  if (workspace.bytes_in_use() != 0)
    verdict = finish(verdict, "the stage did not give its extra memory back");
  return verdict;
}

}  // namespace

Verdict run_and_check(const Stage& stage, const Inputs& inputs, Layout layout, const Expected& expected,
                      Result<float>* result) {
  ForwardRun run(stage, inputs, layout);
  Workspace workspace(free_memory(stage.backend));
  workspace.poison = true;
  run.run(workspace);
  const Result<float> got = run.result();
  if (result != nullptr) *result = got;
  return with_defects(check_forward(got, expected), run, workspace);
}

Verdict run_and_check_backward(const Stage& stage, const Inputs& inputs, const Result<float>& saved,
                               const std::vector<float>& dO, Layout layout,
                               const ExpectedGradients& expected, Gradients<float>* result) {
  BackwardRun run(stage, inputs, saved, dO, layout);
  Workspace workspace(free_memory(stage.backend));
  workspace.poison = true;
  run.run(workspace);
  const Gradients<float> got = run.result();
  if (result != nullptr) *result = got;
  return with_defects(check_backward(got, expected), run, workspace);
}

}  // namespace flashladder
