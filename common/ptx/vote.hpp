#pragma once
// vote.any: whether a condition holds in any lane of a warp. (PTX ISA, parallel synchronization and
// communication instructions, vote.sync.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)
inline namespace for_cuda {
/// Whether `condition` is true in any lane of the warp. All 32 lanes execute it, and all get the same
/// answer. It orders no accesses to memory.
__device__ __forceinline__ bool any_lane(bool condition) {
  return __any_sync(~0u, condition);
}
}  // namespace for_cuda
#else
inline namespace for_emulator {
/// Whether `condition` is true in any lane of the warp. All 32 lanes execute it, and all get the same
/// answer. It orders no accesses to memory.
inline bool any_lane(bool condition, simt::Where where = simt::Where::here()) {
  struct Vote {
    bool condition, any;
  } mine{condition, false};
  simt::collective(~0u, "any_lane", where, mine, [](Vote* const* lanes) {
    bool any = false;
    for (int lane = 0; lane < 32; ++lane) any = any || lanes[lane]->condition;
    for (int lane = 0; lane < 32; ++lane) lanes[lane]->any = any;
  });
  return mine.any;
}
}  // namespace for_emulator
#endif

}  // namespace flashladder
