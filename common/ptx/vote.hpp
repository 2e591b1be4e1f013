#pragma once
// vote.any and vote.ballot: in which lanes of a warp a condition holds. (PTX ISA, parallel synchronization
// and communication instructions, vote.sync.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)
inline namespace for_cuda {
/// Whether `condition` is true in any lane of the warp. All 32 lanes execute it, and all get the same
/// answer. It orders no accesses to memory.
__device__ __forceinline__ bool any_lane(bool condition) {
  return __any_sync(~0u, condition);
}
/// The lanes in which `condition` is true, lane i as bit i. Likewise.
__device__ __forceinline__ unsigned lanes_where(bool condition) {
  return __ballot_sync(~0u, condition);
}
/// The number of the lowest bit that is set, of one at least.
__device__ __forceinline__ int lowest_bit(unsigned bits) {
  return __ffs(static_cast<int>(bits)) - 1;
}
}  // namespace for_cuda
#else
inline namespace for_emulator {
/// The lanes in which `condition` is true, lane i as bit i. All 32 lanes execute it, and all get the same
/// answer. It orders no accesses to memory.
inline unsigned lanes_where(bool condition, const char* name = "lanes_where",
                            simt::Where where = simt::Where::here()) {
  struct Vote {
    bool condition;
    unsigned lanes;
  } mine{condition, 0};
  simt::collective(~0u, name, where, mine, [](Vote* const* lanes) {
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; ++lane) all |= lanes[lane]->condition ? 1u << lane : 0;
    for (unsigned lane = 0; lane < 32; ++lane) lanes[lane]->lanes = all;
  });
  return mine.lanes;
}
/// Whether `condition` is true in any lane of the warp. Likewise.
inline bool any_lane(bool condition, simt::Where where = simt::Where::here()) {
  return lanes_where(condition, "any_lane", where) != 0;
}
/// The number of the lowest bit that is set, of one at least.
inline int lowest_bit(unsigned bits) {
  return __builtin_ctz(bits);
}
}  // namespace for_emulator
#endif

}  // namespace flashladder
