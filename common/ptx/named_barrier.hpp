#pragma once
// bar.sync and bar.arrive: barriers of part of a block. (PTX ISA, parallel synchronization instructions,
// bar.)
#include "common/ptx/stamp.hpp"
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

/// Waits at barrier `id` (1 to 15) until `threads` threads, in whole warps, have come to it.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  stamp(Stamp::barrier);
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  stamp(Stamp::goes_on);
}

/// Counts as having come to barrier `id`, and goes on. (Where pairs of warps use it, racecheck of
/// CUDA 13.0's compute-sanitizer reports hazards between accesses that a later barrier of the whole block
/// keeps apart.)
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  stamp(Stamp::barrier_arrive);
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#else

/// Waits at barrier `id` (1 to 15) until `threads` threads, in whole warps, have come to it.
inline void named_barrier_sync(int id, int threads, simt::Where where = simt::Where::here()) {
  simt::barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), true, "bar.sync", where);
}

/// Counts as having come to barrier `id`, and goes on.
inline void named_barrier_arrive(int id, int threads, simt::Where where = simt::Where::here()) {
  simt::barrier(static_cast<unsigned>(id), static_cast<unsigned>(threads), false, "bar.arrive", where);
}

#endif

}  // namespace flashladder
