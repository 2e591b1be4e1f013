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

/// Numbers in memory are added to the scores, before what the policy Base makes of them.
template <class Base>
struct Bias : Base {
  gmem<const f32> bias;                // [batch, heads, rows, Nk]
  gmem<f32> dbias;                     // as bias; its sums begin with 0
  std::int64_t batch_step, head_step;  // from one to the next; 0 where all share the same
  std::int64_t row_step;
  bool given;     // whether there are any
  bool in_pairs;  // whether two neighbours may be one access: a pair begins at a multiple of 8 bytes
  float inverse;  // of the scale that sums of products are multiplied with

  struct Head : Base::Head {
    std::int64_t begin;  // of its numbers
    int Nq, Nk;
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), b * batch_step + h * head_step, given ? n.Nq : 0, n.Nk};
  }
  /// Whether an element of a tile has a number, which those behind the last row and key have not.
  __device__ __forceinline__ bool has_number(const Head& head, const stage_70::Element& at) const {
    return at.di < head.Nq - at.i && at.dj < head.Nk - at.j;
  }
  /// The first part is the same for all elements of a thread, the second one for all threads.
  __device__ __forceinline__ std::int64_t place(const Head& head, const stage_70::Element& at) const {
    return (head.begin + at.i * row_step + at.j) + (at.di * row_step + at.dj);
  }
  static constexpr bool changes_scores = true, has_bias = true;
  __device__ __forceinline__ bool has_numbers() const { return given; }
  __device__ __forceinline__ f32 number(const Head& head, const stage_70::Element& at) const {
    return bias[place(head, at)];
  }
  __device__ __forceinline__ f32 over_scale(f32 number) const { return number * inverse; }
  __device__ __forceinline__ bool has_pairs() const { return in_pairs; }
  __device__ __forceinline__ float2 pair(const Head& head, const stage_70::Element& at) const {
    return load2(bias + place(head, at));
  }
  /// Where rows, heads or batch entries share a number, blocks add to the same place.
  __device__ __forceinline__ void take_gradient(f32 dS, const Head& head,
                                                const stage_70::Element& at) const {
    atomic_add(dbias + place(head, at), dS);
  }
};

constexpr int clear_threads = 256, clear_elements = 4 * clear_threads;  // of a block

/// x = 0.
__global__ void __launch_bounds__(clear_threads) clear(gmem<f32> x,  // [elements]
                                                       std::int64_t elements) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * clear_elements + threadIdx.x;
#pragma unroll
  for (int e = 0; e < clear_elements; e += clear_threads)
    if (first + e < elements) x[first + e] = 0.f;
}

}  // namespace
}  // namespace flashladder::stage_76
