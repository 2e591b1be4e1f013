#pragma once
#include <string>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/check/run.hpp"

namespace flashladder {

/// A wrong output that a judge knows: factor times the oracle's values, and what is added to it.
struct Wrong {
  std::string what;                 ///< "zeros", "O without the last key of each row".
  double factor = 1;                ///< Of the oracle's values X.
  std::vector<double> change = {};  ///< As long as X; empty: nothing.
  bool needed = true;  ///< Whether an input on which it cannot be told is no input to judge by.
  double plain = 0;    ///< The largest |share| of a right output: that of the plain computations.

  /// How far an output is from the oracle's values X towards this one: 0 at X, 1 where it is this one.
  /// NaN where this one is X.
  double share(const std::vector<float>& output, const std::vector<double>& oracle) const;

  /// Whether right outputs stay on the oracle's side of the middle, twice as far away as plain ones too.
  bool can_be_told() const { return 2 * plain < 0.5; }
};

/// The largest difference allowed to one tensor, its largest 2-norm, and what it must not be.
///
/// With the oracle's values X, the plain computation's error e (plain_forward in the precision under test,
/// the worst of all plain ways) and that precision's unit roundoff u, an output Y passes when all hold:
///
///     max|Y - X| <= 2 max(|e|, w) + 2 max|(X + 0.3 - 0.3) - X|    the last term in the output's dtype
///     ||Y - X||  <= 2 max(||e||, u ||X||, ||w||)             2-norms over the whole tensor
///     Y is nearer to X than to each wrong output W that can be told: (Y - X).(W - X) < ||W - X||^2 / 2
///
/// The first is the rule of the production kernels' own test suites; the second is far stricter over many
/// elements. u ||X|| is what storing the exact result may cost, so that a plain result that is exact by
/// luck, which happens on a handful of elements, does not ask the impossible. w is for dQ and dK of
/// rows that see a single key: there dS = P (dP - D) is 0, a difference of equal sums. What is left of it
/// is how they were rounded, and a plain computation's own rest is one number, sometimes small by chance.
/// So w is what dQ and dK become of D's products, each rounded once in fp32. The third is for inputs on
/// which the first two allow more than a mistake changes.
struct Bound {
  double max_abs = 0;              ///< Of a single element.
  double norm = 0;                 ///< Of the whole tensor.
  std::vector<Wrong> wrongs = {};  ///< What it must not be.

  /// The first two as many times as wide.
  Bound times(double factor) const { return {factor * max_abs, factor * norm, wrongs}; }
  /// For the difference of two outputs, each within its own.
  Bound operator+(const Bound& other) const { return {max_abs + other.max_abs, norm + other.norm, {}}; }
  /// The first of the wrong outputs that it needs to tell and cannot; null where there is none.
  const Wrong* blind_to() const;
};

/// The w of Bound.
struct Rest {
  double max_abs = 0;  ///< Of a single element.
  double norm = 0;     ///< Of the whole tensor.
};

/// The bound of `oracle` for a tensor of `dtype`, given what plain computations make of it.
Bound make_bound(const std::vector<double>& oracle, const std::vector<const std::vector<float>*>& plains,
                 Dtype dtype, std::vector<Wrong> wrongs = {}, Rest rest = {});

/// What a right stage computes on some inputs, and how far from it a stage of precision `dtype` may be.
struct Expected {
  Dtype dtype;            ///< In which the stage computes.
  Result<double> oracle;  ///< O and L in fp64.
  Bound O;                ///< How far O may be from it.
  /// L is fp32 in every dtype: 1e-5, or where scores are so large that fp32 cannot do better twice the
  /// largest error of the plain computations, or of storing it.
  double L = 0;
};

Expected expect_forward(const Inputs& inputs, Dtype dtype);

/// What the checks say. It starts as failed: only a check that ran to its end makes it pass.
struct Verdict {
  bool passed = false;              ///< Whether everything was checked and right.
  bool blind = false;               ///< Nothing was found wrong, but these inputs would not show it.
  std::string why = "not checked";  ///< One line; empty when passed.
  double error = 0;                 ///< The largest difference; NaN where there is one.
  double allowed = 0;               ///< Its bound.
};

/// O against its bound, L against the oracle's: -inf exactly where the oracle has it. NaN never passes, nor
/// does anything on inputs that are blind to a wrong output.
Verdict check_forward(const Result<float>& result, const Expected& expected);

/// A stage against the stage before it, on the same inputs: within the sum of both bounds.
Verdict check_against(const Result<float>& result, const Expected& expected, const Result<float>& before,
                      const Expected& expected_before);

/// What a right backward pass computes, and how far from it one may be. A gradient that is 0 everywhere, as
/// dQ and dK are where each row sees one key, has no wrong outputs; one of the three must have some.
struct ExpectedGradients {
  Gradients<double> oracle;  ///< In fp64.
  Bound dQ;                  ///< How far dQ may be from it.
  Bound dK;                  ///< How far dK may be.
  Bound dV;                  ///< How far dV may be.
  Bound dbias;               ///< How far dbias may be, where there is a bias. It is fp32.
  Bound dsinks;              ///< How far dsinks may be, where there are sinks. They are fp32.
};

/// @param saved  saved_forward, as the stage is given it; O is rounded to `dtype` here
ExpectedGradients expect_backward(const Inputs& inputs, const Result<float>& saved,
                                  const std::vector<float>& dO, Dtype dtype);

/// As expect_backward, from `saved` alone: of some rows or some keys of a larger problem.
/// @param saved  their O and L of that problem, L with sums in fp32 whatever the dtype
ExpectedGradients expect_backward_part(const Inputs& inputs, const Result<float>& saved,
                                       const std::vector<float>& dO, Dtype dtype);

/// dQ, dK and dV, each against its bound.
Verdict check_backward(const Gradients<float>& result, const ExpectedGradients& expected);

/// As check_against, of the backward pass.
Verdict check_backward_against(const Gradients<float>& result, const ExpectedGradients& expected,
                               const Gradients<float>& before, const ExpectedGradients& expected_before);

/// Runs `stage` once in poisoned memory and checks everything: outputs written, nothing else touched,
/// values right.
/// @param result  receives O and L when not null.
Verdict run_and_check(const Stage& stage, const Inputs& inputs, Layout layout, const Expected& expected,
                      Result<float>* result = nullptr);

/// As run_and_check, of the backward pass.
/// @param saved   O and L of the forward pass as the stage is given them: saved_forward
/// @param result  receives dQ, dK and dV when not null.
Verdict run_and_check_backward(const Stage& stage, const Inputs& inputs, const Result<float>& saved,
                               const std::vector<float>& dO, Layout layout,
                               const ExpectedGradients& expected, Gradients<float>* result = nullptr);

}  // namespace flashladder
