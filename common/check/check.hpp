#pragma once
#include <string>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/check/run.hpp"

namespace flashladder {

/// The largest difference allowed to one tensor, and its largest 2-norm.
///
/// With the oracle's values X, the plain computation's error e (plain_forward in the precision under test,
/// the worst of all plain ways) and that precision's unit roundoff u, an output Y passes when both hold:
///
///     max|Y - X| <= 2 max|e| + 2 max|(X + 0.3 - 0.3) - X|    the last term computed in the output's dtype
///     ||Y - X||  <= 2 max(||e||, u ||X||)                    2-norms over the whole tensor
///
/// The first is the rule of the production kernels' own test suites; the second is far stricter over many
/// elements. u ||X|| is what storing the exact result may cost, so that a plain result that is exact by
/// luck, which happens on a handful of elements, does not ask the impossible.
struct Bound {
  double max_abs = 0;  ///< Of a single element.
  double norm = 0;     ///< Of the whole tensor.
};

/// The bound of `oracle` for a tensor of `dtype`, given what plain computations make of it.
Bound make_bound(const std::vector<double>& oracle, const std::vector<const std::vector<float>*>& plains,
                 Dtype dtype);

/// What a right stage computes on some inputs, and how far from it a stage of precision `dtype` may be.
struct Expected {
  Dtype dtype;            ///< In which the stage computes.
  Result<double> oracle;  ///< O and L in fp64.
  Bound O;                ///< How far O may be from it.
  /// L is fp32 in every dtype: 1e-5, or twice the largest error of the plain fp32 computation where scores
  /// are so large that fp32 cannot do better; for 16-bit inputs also that of tensor_core_forward.
  double L = 0;
};

Expected expect_forward(const Inputs& inputs, Dtype dtype);

/// What the checks say. It starts as failed: only a check that ran to its end makes it pass.
struct Verdict {
  bool passed = false;              ///< Whether everything was checked and right.
  std::string why = "not checked";  ///< One line; empty when passed.
  double error = 0;                 ///< The largest difference; NaN where there is one.
  double allowed = 0;               ///< Its bound.
};

/// O against its bound, L against the oracle's: -inf exactly where the oracle has it. NaN never passes.
Verdict check_forward(const Result<float>& result, const Expected& expected);

/// A stage against the stage before it, on the same inputs: within the sum of both bounds.
Verdict check_against(const Result<float>& result, const Expected& expected, const Result<float>& before,
                      const Expected& expected_before);

/// What a right backward pass computes, and how far from it one may be.
///
/// For 16-bit inputs two more computations count as plain, both in fp32, their scores added up from the
/// last term to the first and as tensor cores do it. A stage's S is fp32, and P = exp(S - L) is off by what
/// S is off by; large scores that are rounded to 16 bits are mostly the same in any order, and P is then
/// exact by luck.
struct ExpectedGradients {
  Gradients<double> oracle;  ///< In fp64.
  Bound dQ;                  ///< How far dQ may be from it.
  Bound dK;                  ///< How far dK may be.
  Bound dV;                  ///< How far dV may be.
};

/// @param saved  O and L of the plain computation's own forward pass, plain_forward in `dtype`
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
