#pragma once
// Clusters: blocks of a grid that run at the same time, on multiprocessors that reach each other's shared
// memory. What the patches beside this file need of them. (PTX ISA, cluster of cooperative thread arrays.)
// A kernel says `__cluster_dims__(cluster_blocks)`, and its grid has a multiple of so many blocks.
//
// The emulator has no clusters: there each block is one.
#include "common/ptx/tma.hpp"

namespace flashladder {

#if defined(__CUDACC__)

constexpr int cluster_blocks = 2;  ///< Of a cluster: blocks 2 x and 2 x + 1 of the grid.

/// Where block `rank` of the cluster has what this one has at `p`: an address of shared memory. (PTX ISA,
/// data movement instructions, mapa.)
template <class T>
__device__ __forceinline__ unsigned address_in(int rank, const T* p) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(p))), "r"(rank));
  return address;
}

/// Waits until all threads of the cluster have come here: all its blocks run, and behind
/// fence_mbarrier_init() what each has initialised is visible to all. (PTX ISA, parallel synchronization
/// instructions, barrier.cluster.)
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// One arrival at the mbarrier of block `rank`, for those who write over what this thread has read. What it
/// has *written* is not there for them. (PTX ISA, parallel synchronization instructions, mbarrier.arrive.)
__device__ __forceinline__ void mbarrier_arrive_in(int rank, mbarrier* bar) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, bar))
               : "memory");
}

/// As mbarrier_arrive_in, and what this thread has written is there for those who wait for the phase: nvcc
/// 13.0 makes a MEMBAR of the whole GPU before the arrival.
__device__ __forceinline__ void mbarrier_release_in(int rank, mbarrier* bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, bar))
               : "memory");
}

/// Announces a store_in() to this block, and is one arrival.
__device__ __forceinline__ void mbarrier_arrive_expect_store(mbarrier* bar) {
  mbarrier_arrive_expect_tx(bar, sizeof(int));
}

/// Writes x to where block `rank` has what this one has at `p`; its mbarrier there gets the bytes. (PTX
/// ISA, data movement instructions, st.async.)
__device__ __forceinline__ void store_in(int rank, int* p, int x, mbarrier* bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];" ::"r"(
                   address_in(rank, p)),
               "r"(x), "r"(address_in(rank, bar))
               : "memory");
}

/// As tma_load, to the same place in all blocks of the cluster; the mbarrier of each gets the bytes. (PTX
/// ISA, data movement instructions, cp.async.bulk.tensor with .multicast::cluster.)
template <class T>
__device__ __forceinline__ void tma_load_multicast(T* to, const tensor_map& map, mbarrier* bar, int c0,
                                                   int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(bar))), "r"(c0), "r"(c1), "r"(c2),
      "r"(c3), "h"(static_cast<unsigned short>((1 << cluster_blocks) - 1))
      : "memory");
}

#else

#define __cluster_dims__(...)

constexpr int cluster_blocks = 1;  ///< Of a cluster.

/// As __syncthreads.
inline void cluster_sync(simt::Where where = simt::Where::here()) {
  __syncthreads(where);
}

/// As mbarrier_arrive.
inline void mbarrier_arrive_in(int, simt::smem<mbarrier> bar, simt::Where where = simt::Where::here()) {
  mbarrier_arrive(bar, where);
}

/// As mbarrier_arrive.
inline void mbarrier_release_in(int, simt::smem<mbarrier> bar, simt::Where where = simt::Where::here()) {
  mbarrier_arrive(bar, where);
}

/// Nothing: store_in() is the arrival.
inline void mbarrier_arrive_expect_store(simt::smem<mbarrier>) {}

/// Writes x to p[0], and is one arrival.
inline void store_in(int, simt::smem<int> p, int x, simt::smem<mbarrier> bar,
                     simt::Where where = simt::Where::here()) {
  p[0] = x;
  mbarrier_arrive(bar, where);
}

/// As tma_load.
template <class T>
void tma_load_multicast(simt::smem<T> to, const tensor_map& map, simt::smem<mbarrier> bar, int c0, int c1,
                        int c2, int c3, simt::Where where = simt::Where::here()) {
  tma_load(to, map, bar, c0, c1, c2, c3, where);
}

#endif

}  // namespace flashladder
