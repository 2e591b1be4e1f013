#pragma once
// The policy of stage 80; attention.cu beside it explains its idea.
#include "stages/75_softcap/policy.hpp"

namespace flashladder::stage_80 {
namespace {

/// Stage 75's softcap of the scores that the policy Base makes; without a softcap its cap is 0, and these
/// stay as they are. Base may only add to scores, so its own slope is 1.
template <class Base>
struct SoftcapIfAny : Base {
  using typename Base::Head;
  stage_75::Softcap<stage_70::Plain<true>> softcap;

  static constexpr bool changes_scores = true;
  __device__ __forceinline__ f32 score(f32 s, const Head& head, const stage_70::Element& at) const {
    const f32 added = Base::score(s, head, at);
    return softcap.cap == 0.f ? added : softcap.score(added, {}, at);
  }
  __device__ __forceinline__ f32 slope(f32 score, const Head&, const stage_70::Element& at) const {
    return softcap.cap == 0.f ? f32(1.f) : softcap.slope(score, {}, at);
  }
};

}  // namespace
}  // namespace flashladder::stage_80
