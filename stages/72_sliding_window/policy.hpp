#pragma once
// The policy of stage 72; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_72 {
namespace {

/// Row i sees the keys around its own, from `left` before it to `right` behind it; -1: all.
struct SlidingWindow : stage_70::Plain<true> {
  int left, right;

  // Under the causal mask, and before a row's window is full, later rows see more keys.
  static constexpr bool causal = true;
  // lab: which keys row i sees, and whether there are rows that do not see the first keys
  static constexpr bool begins_later = true;
  __device__ __forceinline__ Mask<int> mask(const Sizes& n) const {
    return {n.Nq, n.Nk, /*causal=*/false, left, right};
  }
  __device__ __forceinline__ int keys_first(const Sizes& n, int i) const {
    return mask(n).keys_first(asked(i));
  }
  __device__ __forceinline__ int keys_end(const Sizes& n, int i) const {
    return mask(n).keys_end(asked(i));
  }
  // end of lab
  // lab: not graded, for the backward pass: which rows see key j, and whether each key is seen by a row
  static constexpr bool each_key_is_seen = false;
  __device__ __forceinline__ int rows_first(const Sizes& n, int j) const { return mask(n).rows(j).first; }
  __device__ __forceinline__ int rows_end(const Sizes& n, int j) const { return mask(n).rows(j).end; }
  // end of lab
};

}  // namespace
}  // namespace flashladder::stage_72
