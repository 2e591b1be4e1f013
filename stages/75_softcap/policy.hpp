#pragma once
// The policy of stage 75; attention.cu beside it explains its idea.
#include "common/ptx/exp2.hpp"
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_75 {
namespace {

/// A score s becomes cap * tanh(s / cap), on top of a policy Base that leaves scores as they are.
template <class Base>
struct Softcap : Base {
  using typename Base::Head;
  float cap, inverse;  // 1 / cap
  float unit;          // 2 log2(e) / cap

  static_assert(!Base::changes_scores || Base::has_bias);  // which are in s already
  // lab: what a score becomes, and that it becomes something else
  static constexpr bool changes_scores = true;
  // tanh(x) = (t - 1) / (t + 1) with t = exp(2 x) = 2^(2 log2(e) x). From 2^30 on it is 1, and t must stay
  // finite. (A NaN is not above 30, and stays.)
  __device__ __forceinline__ f32 score(f32 s, const Head&, const stage_70::Element&) const {
    const f32 power = s * unit, t = ex2_approx(power > 30.f ? f32(30.f) : power);
    return cap * __fdividef(t - 1.f, t + 1.f);
  }
  // end of lab
  // lab: not graded, for the backward pass: the derivative of score, where score has returned this
  // tanh' = 1 - tanh^2
  __device__ __forceinline__ f32 slope(f32 score, const Head&, const stage_70::Element&) const {
    const f32 part = score * inverse;
    return fmaf(-part, part, 1.f);
  }
  // end of lab
};

}  // namespace
}  // namespace flashladder::stage_75
