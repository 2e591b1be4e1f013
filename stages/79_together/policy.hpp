#pragma once
// The policy of stage 79; attention.cu beside it explains its idea.
#include "stages/75_softcap/policy.hpp"

namespace flashladder::stage_79 {
namespace {

/// Stage 75's policy where there is a softcap; without one, whose cap is 0, scores are what Base makes of
/// them.
template <class Base>
struct SoftcapIfAny : stage_75::Softcap<Base> {
  using typename Base::Head;

  __device__ __forceinline__ f32 score(f32 s, const Head& head, const stage_70::Element& at) const {
    return this->cap == 0.f ? Base::score(s, head, at) : stage_75::Softcap<Base>::score(s, head, at);
  }
  __device__ __forceinline__ f32 slope(f32 score, const Head& head, const stage_70::Element& at) const {
    return this->cap == 0.f ? f32(1.f) : stage_75::Softcap<Base>::slope(score, head, at);
  }
};

}  // namespace
}  // namespace flashladder::stage_79
