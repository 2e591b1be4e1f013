#pragma once
// The policy of stage 76; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_76 {
namespace {

/// From a score slope * |i + Nk - Nq - j| is taken, after what the policy Base makes of it.
template <class Base>
struct Alibi : Base {
  gmem<const f32> slopes;  // [q_heads]

  struct Head : Base::Head {
    f32 slope;
    int own_key;  // of row 0
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), slopes[h], n.Nk - n.Nq};
  }
  /// How far key j is from row i's own.
  __device__ __forceinline__ f32 distance(const Head& head, int i, int j) const {
    const int ahead = i + head.own_key - j;
    return static_cast<float>(ahead < 0 ? -ahead : ahead);
  }

  static constexpr bool changes_scores = true;
  __device__ __forceinline__ f32 score(f32 s, const Head& head, int i, int j) const {
    return fmaf(-head.slope, distance(head, i, j), Base::score(s, head, i, j));
  }
  // What is taken does not depend on s.
  __device__ __forceinline__ f32 slope(f32 score, const Head& head, int i, int j) const {
    return Base::slope(fmaf(head.slope, distance(head, i, j), score), head, i, j);
  }
};

}  // namespace
}  // namespace flashladder::stage_76
