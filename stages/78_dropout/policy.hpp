#pragma once
// The policy of stage 78; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_78 {
namespace {

/// Some P are left out by chance, on top of the policy Base. Only where the seed may be in memory a kernel
/// asks for that: it asks for each 32 keys, since registers are scarce there.
template <class Base, bool may_be_in_memory = false>
struct Dropout : Base {
  unsigned long long known_seed;
  bool in_memory;         // whether it is in memory instead
  gmem<const int> words;  // [2]: its low and high half, there
  int kept;               // of 256
  float inverse;          // 256 / kept

  struct Head : Base::Head {
    std::int64_t number;  // of all batch entries
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), n.head(b, h)};
  }

  static constexpr bool drops = true;
  __device__ __forceinline__ Words bytes(const Head& head, int i, int j) const {
    return dropout_bytes(seed(), head.number, i, j);
  }
  __device__ __forceinline__ bool stays(const Words& bytes, int i, int j) const {
    return dropout_byte(bytes, i, j) < kept;
  }
  __device__ __forceinline__ float rescale() const { return inverse; }
  __device__ __forceinline__ unsigned long long seed() const {
    if (!may_be_in_memory || !in_memory) return known_seed;
    const unsigned low = static_cast<int>(words[0]), high = static_cast<int>(words[1]);
    return (static_cast<unsigned long long>(high) << 32) | low;
  }
};

}  // namespace
}  // namespace flashladder::stage_78
