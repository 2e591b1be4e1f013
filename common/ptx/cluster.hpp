#pragma once
// Clusters: blocks of a grid that run at the same time, on multiprocessors that reach each other's shared
// memory. (PTX ISA, cluster of cooperative thread arrays; from sm_90 on.)
//
// The host starts them by launch_clusters(). Blocks c * n to c * n + n - 1 of a grid of one dimension are
// cluster c of n blocks, and blockIdx.x % n is a block's *rank* in it. All blocks lay out shared memory
// alike: what a word names by an address of this block, it uses at the same place in another.
//
// A block may use another one's shared memory once that one runs, so behind a cluster_sync(), and only
// while it runs: the other one must not return before it knows of the use.
#include "common/ptx/tma.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

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

/// Waits for all threads of the cluster, of which none has returned. Behind fence_mbarrier_init() what each
/// block has initialised is visible to all. (PTX ISA, parallel synchronization instructions,
/// barrier.cluster.)
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// One arrival at the mbarrier of block `rank`, and no waiting: what this thread has *read* has been read
/// for those who wait for the phase. What it has *written* need not be there for them, in its own block
/// neither: then it takes mbarrier_arrive(). (PTX ISA, parallel synchronization instructions,
/// mbarrier.arrive.)
__device__ __forceinline__ void mbarrier_arrive_in(int rank, mbarrier* bar) {
  stamp(Stamp::mbarrier_arrive);
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, bar))
               : "memory");
}

/// Announces a store_in() to this block, and is one arrival.
__device__ __forceinline__ void mbarrier_arrive_expect_store(mbarrier* bar) {
  mbarrier_arrive_expect_tx(bar, sizeof(int));
}

/// Begins to write x to where block `rank` has what this one has at `p`; its mbarrier there gets the bytes.
/// (PTX ISA, data movement instructions, st.async.)
__device__ __forceinline__ void store_in(int rank, int* p, int x, mbarrier* bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];" ::"r"(
                   address_in(rank, p)),
               "r"(x), "r"(address_in(rank, bar))
               : "memory");
}

/// As tma_load, by one read of the box, to the same place in all blocks of a cluster of `blocks`; the
/// mbarrier of each gets the bytes. (PTX ISA, data movement instructions, cp.async.bulk.tensor with
/// .multicast::cluster.)
template <int blocks, class T>
__device__ __forceinline__ void tma_load_multicast(T* to, const tensor_map& map, mbarrier* bar, int c0,
                                                   int c1, int c2, int c3) {
  stamp(Stamp::load);
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(bar))), "r"(c0), "r"(c1), "r"(c2),
      "r"(c3), "h"(static_cast<unsigned short>((1 << blocks) - 1))
      : "memory");
}

}  // namespace for_cuda

#else

namespace simt {

/// Executes mbarrier_arrive_in.
void arrive_in_block(int rank, SharedArray* array, std::byte* at, Where where);
/// Executes store_in.
void store_in_block(int rank, SharedArray* array, std::byte* at, int x, SharedArray* bar_array,
                    std::byte* bar, Where where);
/// Fails unless the running cluster has so many blocks.
void require_blocks(int blocks, Where where);

}  // namespace simt

inline namespace for_emulator {

/// Waits for all threads of the cluster, of which none has returned. Behind fence_mbarrier_init() what each
/// block has initialised is visible to all. (PTX ISA, parallel synchronization instructions,
/// barrier.cluster.)
inline void cluster_sync(simt::Where where = simt::Where::here()) {
  simt::synchronise_cluster(where);
}

/// One arrival at the mbarrier of block `rank`, and no waiting: what this thread has *read* has been read
/// for those who wait for the phase. What it has *written* need not be there for them, in its own block
/// neither: then it takes mbarrier_arrive(). (PTX ISA, parallel synchronization instructions,
/// mbarrier.arrive.)
inline void mbarrier_arrive_in(int rank, simt::smem<mbarrier> bar,
                               simt::Where where = simt::Where::here()) {
  simt::arrive_in_block(rank, bar.array(), reinterpret_cast<std::byte*>(bar.find<1>(0, where)), where);
}

/// Announces a store_in() to this block, and is one arrival.
inline void mbarrier_arrive_expect_store(simt::smem<mbarrier> bar,
                                         simt::Where where = simt::Where::here()) {
  mbarrier_arrive_expect_tx(bar, sizeof(int), where);
}

/// Begins to write x to where block `rank` has what this one has at `p`; its mbarrier there gets the bytes.
/// (PTX ISA, data movement instructions, st.async.)
inline void store_in(int rank, simt::smem<int> p, int x, simt::smem<mbarrier> bar,
                     simt::Where where = simt::Where::here()) {
  simt::store_in_block(rank, p.array(), reinterpret_cast<std::byte*>(p.find<1>(0, where)), x, bar.array(),
                       reinterpret_cast<std::byte*>(bar.find<1>(0, where)), where);
}

/// As tma_load, by one read of the box, to the same place in all blocks of a cluster of `blocks`; the
/// mbarrier of each gets the bytes. (PTX ISA, data movement instructions, cp.async.bulk.tensor with
/// .multicast::cluster.)
template <int blocks, class T>
void tma_load_multicast(simt::smem<T> to, const tensor_map& map, simt::smem<mbarrier> bar, int c0, int c1,
                        int c2, int c3, simt::Where where = simt::Where::here()) {
  simt::require_blocks(blocks, where);
  simt::load_box(0, blocks, to.array(), reinterpret_cast<std::byte*>(to.template find<1>(0, where)),
                 simt::bytes_behind(to), map, bar.array(),
                 reinterpret_cast<std::byte*>(bar.find<1>(0, where)), {c0, c1, c2, c3}, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
