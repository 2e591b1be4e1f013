#pragma once
// The policy of stage 76; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_76 {
namespace {

/// From a score slope * |i + Nk - Nq - j| is taken, after what the policy Base makes of it.
template <class Base>
struct Alibi : Base {
  gmem<const f32> slopes;  // [q_heads]
  bool given;              // whether there are any

  struct Head : Base::Head {
    f32 slope;
    int own_key;  // of row 0
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), given ? static_cast<f32>(slopes[h]) : f32(0.f), n.Nk - n.Nq};
  }
  /// How far a key is from its row's own. One conversion serves a thread's whole tile.
  __device__ __forceinline__ f32 distance(const Head& head, const stage_70::Element& at) const {
    const f32 ahead =
        f32(static_cast<float>(at.i + head.own_key - at.j)) + static_cast<float>(at.di - at.dj);
    return fabsf(ahead);
  }

  static constexpr bool changes_scores = true;
  __device__ __forceinline__ f32 score(f32 s, const Head& head, const stage_70::Element& at) const {
    return fmaf(-head.slope, distance(head, at), Base::score(s, head, at));
  }
  // What is taken does not depend on s.
  __device__ __forceinline__ f32 slope(f32 score, const Head& head, const stage_70::Element& at) const {
    return Base::slope(fmaf(head.slope, distance(head, at), score), head, at);
  }
};

}  // namespace
}  // namespace flashladder::stage_76
