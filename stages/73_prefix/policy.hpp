#pragma once
// The policy of stage 73; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_73 {
namespace {

/// Every row sees the first keys, too, beside those that the policy Base lets it see from key 0 on.
template <class Base>
struct Prefix : Base {
  int prefix;  // how many; a packed sequence may have fewer

  __device__ __forceinline__ int keys_end(const Sizes& n, int i) const {
    const int end = Base::keys_end(n, i), least = prefix < n.Nk ? prefix : n.Nk;
    return end < least ? least : end;
  }
  __device__ __forceinline__ int rows_first(const Sizes& n, int j) const {
    return j < prefix ? 0 : Base::rows_first(n, j);
  }
};

}  // namespace
}  // namespace flashladder::stage_73
