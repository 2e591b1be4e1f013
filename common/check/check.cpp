#include "common/check/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
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
    " cannot be judged on this input, because the plain computation itself gives Inf or NaN";

/// "" when `a` is within `bound` of `b`; else what is wrong, where. Written so that NaN fails every
/// comparison.
template <class A, class B>
std::string compare(const char* name, const std::vector<A>& a, const std::vector<B>& b, const Bound& bound,
                    const char* other, Verdict& verdict) {
  if (a.size() != b.size()) return std::string(name) + " has the wrong number of elements";
  const Difference found = difference(a, b);
  // An infinite bound would let everything pass.
  if (!std::isfinite(bound.max_abs) || !std::isfinite(bound.norm)) {
    verdict.blind = true;
    return std::string(name) + no_yardstick;
  }
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
                      const char* name, Verdict& verdict) {
  if (L.size() != other.size()) return "L has the wrong number of elements";
  if (!std::isfinite(tolerance)) {
    verdict.blind = true;
    return std::string("L") + no_yardstick;
  }
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

/// compare with the oracle, and "" only when `output` is nearer to it than to each wrong output.
std::string compare_with_oracle(const char* name, const std::vector<float>& output,
                                const std::vector<double>& oracle, const Bound& bound, Verdict& verdict) {
  if (std::string why = compare(name, output, oracle, bound, "the oracle says", verdict); !why.empty())
    return why;
  for (const Wrong& wrong : bound.wrongs) {
    if (wrong.can_be_told() && !(wrong.share(output, oracle) < 0.5))
      return std::string(name) + " is nearer to " + wrong.what + " than to what the oracle says";
  }
  return "";
}

Verdict finish(Verdict verdict, const std::string& why) {
  verdict.why = why;
  verdict.passed = why.empty();
  return verdict;
}

/// As finish, where nothing was found wrong so far: a bound that cannot tell is no pass.
Verdict finish(Verdict verdict, const std::string& why,
               std::initializer_list<std::pair<const char*, const Bound*>> bounds) {
  if (!why.empty()) return finish(std::move(verdict), why);
  bool all_zero = true;
  for (const auto& [name, bound] : bounds) {
    all_zero = all_zero && bound->wrongs.empty();
    if (const Wrong* wrong = bound->blind_to()) {
      verdict.blind = true;
      return finish(std::move(verdict), std::string(name) + " cannot be judged on this input, because " +
                                            wrong->what + " would pass too");
    }
  }
  verdict.blind = all_zero;
  return finish(std::move(verdict),
                all_zero ? "the outputs cannot be judged on this input, because zeros are right" : "");
}

/// The larger of the two; NaN is larger than any number, and makes every comparison with the bound fail.
double worse(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace

double Wrong::share(const std::vector<float>& output, const std::vector<double>& oracle) const {
  double along = 0, squares = 0;
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double way = (factor - 1) * oracle[i] + (change.empty() ? 0 : change[i]);
    if (way == 0) continue;
    along += (static_cast<double>(output[i]) - oracle[i]) * way;
    squares += way * way;
  }
  return along / squares;
}

const Wrong* Bound::blind_to() const {
  const auto blind =
      std::ranges::find_if(wrongs, [](const Wrong& wrong) { return wrong.needed && !wrong.can_be_told(); });
  return blind == wrongs.end() ? nullptr : &*blind;
}

Bound make_bound(const std::vector<double>& oracle, const std::vector<const std::vector<float>*>& plains,
                 Dtype dtype, std::vector<Wrong> wrongs, Rest rest) {
  double error = 0, error_norm = 0;
  for (const std::vector<float>* plain : plains) {
    const Difference found = difference(*plain, oracle);
    error = worse(error, found.max_abs);
    error_norm = worse(error_norm, found.norm);
    for (Wrong& wrong : wrongs) wrong.plain = worse(wrong.plain, std::abs(wrong.share(*plain, oracle)));
  }
  double rounding = 0, squares = 0;
  for (double x : oracle) {
    const float shifted = round_to(dtype, round_to(dtype, static_cast<float>(x)) + 0.3f);
    rounding = std::max(rounding, std::abs(static_cast<double>(round_to(dtype, shifted - 0.3f)) - x));
    squares += x * x;
  }
  const double storing = unit_roundoff(dtype) * std::sqrt(squares);
  return {2 * worse(error, rest.max_abs) + 2 * rounding, 2 * worse(worse(error_norm, storing), rest.norm),
          std::move(wrongs)};
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
               std::vector<float> R::*tensor, Dtype dtype, std::vector<Wrong> wrongs, Rest rest = {}) {
  std::vector<const std::vector<float>*> tensors;
  tensors.reserve(plains.size());
  for (const R& plain : plains) tensors.push_back(&(plain.*tensor));
  return make_bound(oracle, tensors, dtype, std::move(wrongs), rest);
}

/// The wrong outputs of a tensor; none where it is 0 everywhere.
/// @param without  what is added to it where each row goes without one of its keys
template <class Without>
std::vector<Wrong> wrongs_of(const char* name, const std::vector<double>& oracle, Without without) {
  const auto largest = std::ranges::max_element(oracle, {}, [](double x) { return std::abs(x); });
  if (largest == oracle.end() || *largest == 0) return {};
  std::vector<double> one_zero(oracle.size());
  one_zero[largest - oracle.begin()] = -*largest;
  return {{"zeros", 0},
          {std::string("1.05 times ") + name, 1.05},
          {std::string(name) + " with its largest element zero", 1, std::move(one_zero)},
          {std::string(name) + " without the heaviest key of each row", 1, without(Dropped::heaviest)},
          {std::string(name) + " without the first key of each row", 1, without(Dropped::first), false},
          {std::string(name) + " without the last key of each row", 1, without(Dropped::last), false}};
}

}  // namespace

Expected expect_forward(const Inputs& inputs, Dtype dtype) {
  // A stage computes a softcap's tanh from one exponential, whose error the cap multiplies.
  const double of_softcap = std::ldexp(inputs.problem.softcap, -23);
  Expected expected{dtype, oracle_forward(inputs), {}, std::max(1e-5, of_softcap)};
  auto plains = all_ways([&](PlainWay way) { return plain_forward(inputs, dtype, way); });
  if (dtype != Dtype::fp32) plains.push_back(tensor_core_forward(inputs, dtype));
  const auto without = [&](Dropped which) { return change_without_key(inputs, expected.oracle, which); };
  expected.O = bound_of(expected.oracle.O, plains, &Result<float>::O, dtype,
                        wrongs_of("O", expected.oracle.O, without));
  for (const Result<float>& plain : plains) {
    for (std::size_t i = 0; i < plain.L.size(); ++i) {
      const double right = expected.oracle.L[i], got = plain.L[i];
      // -inf against -inf, a row that sees no key, is no error.
      if (std::isinf(right) && got == right) continue;
      // So much it costs, too: a plain L may be exact by luck. Tensor cores cut off what does not fit into
      // a score, which is up to twice what rounding it costs.
      const double storing = (dtype == Dtype::fp32 ? 1 : 2) * unit_roundoff(Dtype::fp32) * std::abs(right);
      expected.L = worse(expected.L, 2 * worse(std::abs(got - right), storing));
    }
  }
  return expected;
}

Verdict check_forward(const Result<float>& result, const Expected& expected) {
  Verdict verdict;
  std::string why = compare_with_oracle("O", result.O, expected.oracle.O, expected.O, verdict);
  if (why.empty()) why = compare_L(result.L, expected.oracle.L, expected.L, "the oracle says", verdict);
  return finish(verdict, why, {{"O", &expected.O}});
}

Verdict check_against(const Result<float>& result, const Expected& expected, const Result<float>& before,
                      const Expected& expected_before) {
  Verdict verdict;
  std::string why =
      compare("O", result.O, before.O, expected.O + expected_before.O, "the stage before says", verdict);
  if (why.empty())
    why = compare_L(result.L, before.L, expected.L + expected_before.L, "the stage before says", verdict);
  return finish(verdict, why);
}

namespace {

/// The w of some gradients.
struct Rests {
  Rest dQ, dK, dbias;
};

/// Of rows that see a single key: of D, each of their products is rounded once; that is what multiplies the
/// key, for which the largest stands, and the row of Q, and what dbias is a sum of.
Rests rests(const Inputs& inputs, const Result<float>& saved, const std::vector<float>& dO) {
  const Problem& p = inputs.problem;
  const double u = unit_roundoff(Dtype::fp32), scale = std::abs(p.softmax_scale());
  double longest = 0, largest = 0;  // of K, squared
  for (std::size_t at = 0; at < inputs.K.size(); at += p.d) {
    const auto row = inputs.K.begin() + static_cast<std::ptrdiff_t>(at);
    longest = std::max(longest, std::inner_product(row, row + p.d, row, 0.0));
    for (std::int64_t c = 0; c < p.d; ++c) largest = std::max(largest, std::pow(row[c], 2.0));
  }
  Rest of_dQ, of_dK;                                        // squared
  std::vector<double> columns(p.batch * p.kv_heads * p.d);  // of dK
  std::vector<double> numbers(inputs.bias.size());          // of dbias
  for (std::int64_t i = 0; i < p.batch * p.q_heads * p.Nq; ++i) {
    const auto keys = inputs.whole().keys(i % p.Nq + (inputs.part ? inputs.part->first : 0));
    if (keys.size() != 1) continue;
    const std::int64_t at = i * p.d, b = i / p.Nq / p.q_heads, h = i / p.Nq % p.q_heads;
    double products = 0;
    for (std::int64_t c = 0; c < p.d; ++c) products += std::pow(u * dO[at + c] * saved.O[at + c], 2);
    if (p.has_bias()) {  // a dimension of 1 is shared
      const std::int64_t row = i % p.Nq;
      numbers[((b % p.bias_batch * p.bias_heads + h % p.bias_heads) * p.bias_rows + row % p.bias_rows) *
                  p.Nk +
              keys.first] += products;
    }
    products *= scale * scale;  // dQ and dK have it, dbias has not
    of_dQ.norm += products * longest;
    of_dQ.max_abs = std::max(of_dQ.max_abs, products * largest);
    for (std::int64_t c = 0; c < p.d; ++c)
      columns[(b * p.kv_heads + p.kv_head(h)) * p.d + c] += products * std::pow(inputs.Q[at + c], 2.0);
  }
  of_dK.norm = std::accumulate(columns.begin(), columns.end(), 0.0);
  of_dK.max_abs = *std::ranges::max_element(columns);
  const auto root = [](double norm, double max_abs) { return Rest{std::sqrt(max_abs), std::sqrt(norm)}; };
  return {root(of_dQ.norm, of_dQ.max_abs), root(of_dK.norm, of_dK.max_abs),
          p.has_bias() ? root(std::accumulate(numbers.begin(), numbers.end(), 0.0),
                              *std::ranges::max_element(numbers))
                       : Rest{}};
}

/// `oracle`, with the bounds that plain computations from what was saved give.
/// @param definition  whether the oracle is from the definition, and not from what was saved
ExpectedGradients expect_gradients(Gradients<double> oracle, const Inputs& inputs, Result<float> saved,
                                   const std::vector<float>& dO, Dtype dtype, bool definition) {
  ExpectedGradients expected{std::move(oracle), {}, {}, {}, {}, {}};
  for (float& x : saved.O) x = round_to(dtype, x);
  auto plains = all_ways([&](PlainWay way) { return plain_backward(inputs, saved, dO, dtype, way); });
  if (dtype != Dtype::fp32) plains.push_back(tensor_core_backward(inputs, saved, dO, dtype));
  std::map<Dropped, Gradients<double>> changes;
  for (const Dropped which : {Dropped::heaviest, Dropped::first, Dropped::last})
    changes[which] = change_without_pair(inputs, definition ? nullptr : &saved, dO, which);
  const auto bound = [&](const char* name, std::vector<double> Gradients<double>::*exact,
                         std::vector<float> Gradients<float>::*tensor, Dtype stored, Rest rest = {}) {
    return bound_of(expected.oracle.*exact, plains, tensor, stored,
                    wrongs_of(name, expected.oracle.*exact,
                              [&](Dropped which) { return std::move(changes[which].*exact); }),
                    rest);
  };
  const Rests rest = rests(inputs, saved, dO);
  expected.dQ = bound("dQ", &Gradients<double>::dQ, &Gradients<float>::dQ, dtype, rest.dQ);
  expected.dK = bound("dK", &Gradients<double>::dK, &Gradients<float>::dK, dtype, rest.dK);
  expected.dV = bound("dV", &Gradients<double>::dV, &Gradients<float>::dV, dtype);
  expected.dbias =
      bound("dbias", &Gradients<double>::dbias, &Gradients<float>::dbias, Dtype::fp32, rest.dbias);
  // One number a head, a sum over its rows that may cancel: no input is needed to show all of its mistakes.
  std::vector<Wrong> wrongs = {{"zeros", 0, {}, false}, {"1.05 times dsinks", 1.05, {}, false}};
  expected.dsinks = bound_of(expected.oracle.dsinks, plains, &Gradients<float>::dsinks, Dtype::fp32,
                             inputs.sinks.empty() ? std::vector<Wrong>() : std::move(wrongs));
  return expected;
}

}  // namespace

ExpectedGradients expect_backward(const Inputs& inputs, const Result<float>& saved,
                                  const std::vector<float>& dO, Dtype dtype) {
  return expect_gradients(oracle_backward(inputs, dO), inputs, saved, dO, dtype, true);
}

ExpectedGradients expect_backward_part(const Inputs& inputs, const Result<float>& saved,
                                       const std::vector<float>& dO, Dtype dtype) {
  return expect_gradients(oracle_backward_from(inputs, saved, dO), inputs, saved, dO, dtype, false);
}

Verdict check_backward(const Gradients<float>& result, const ExpectedGradients& expected) {
  Verdict verdict;
  std::string why = compare_with_oracle("dQ", result.dQ, expected.oracle.dQ, expected.dQ, verdict);
  if (why.empty()) why = compare_with_oracle("dK", result.dK, expected.oracle.dK, expected.dK, verdict);
  if (why.empty()) why = compare_with_oracle("dV", result.dV, expected.oracle.dV, expected.dV, verdict);
  if (why.empty())
    why = compare_with_oracle("dbias", result.dbias, expected.oracle.dbias, expected.dbias, verdict);
  if (why.empty())
    why = compare_with_oracle("dsinks", result.dsinks, expected.oracle.dsinks, expected.dsinks, verdict);
  return finish(verdict, why, {{"dQ", &expected.dQ}, {"dK", &expected.dK}, {"dV", &expected.dV}});
}

Verdict check_backward_against(const Gradients<float>& result, const ExpectedGradients& expected,
                               const Gradients<float>& before, const ExpectedGradients& expected_before) {
  Verdict verdict;
  std::string why;
  const auto add = [&](const char* name, std::vector<float> Gradients<float>::*tensor,
                       Bound ExpectedGradients::*bound) {
    if (why.empty())
      why = compare(name, result.*tensor, before.*tensor, expected.*bound + expected_before.*bound,
                    "the stage before says", verdict);
  };
  add("dQ", &Gradients<float>::dQ, &ExpectedGradients::dQ);
  add("dK", &Gradients<float>::dK, &ExpectedGradients::dK);
  add("dV", &Gradients<float>::dV, &ExpectedGradients::dV);
  add("dbias", &Gradients<float>::dbias, &ExpectedGradients::dbias);
  add("dsinks", &Gradients<float>::dsinks, &ExpectedGradients::dsinks);
  return finish(verdict, why);
}

namespace {

/// What a run left behind besides values: a defect explains more than the wrong value it causes.
template <class Run>
Verdict with_defects(Verdict verdict, const Run& run, const Workspace& workspace) {
  std::string why = run.defect();
  if (workspace.bytes_in_use() != 0) why = "the stage did not give its extra memory back";
  if (why.empty()) return verdict;
  verdict.blind = false;
  return finish(verdict, why);
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
