#pragma once
// The policy of stage 73; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_73 {
namespace {

/// The causal mask, and every row sees the first keys, too.
struct Prefix : stage_70::Plain<true> {
  int prefix;  // how many, at most Nk; with all of them there is no mask

  __device__ __forceinline__ Mask<int> mask(const Sizes& n) const {
    return {n.Nq, n.Nk, /*causal=*/true, -1, -1, prefix};
  }
  __device__ __forceinline__ int keys_end(const Sizes& n, int i) const {
    return mask(n).keys_end(asked(i));
  }
  __device__ __forceinline__ int rows_first(const Sizes& n, int j) const { return mask(n).rows(j).first; }
};

}  // namespace
}  // namespace flashladder::stage_73
