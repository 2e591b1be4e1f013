#pragma once
// Kernels in clusters of two blocks, each wrong in one way, and right where `right` is true.
#include "common/ptx/cluster.hpp"
#include "common/simt/simt_host.hpp"

namespace flashladder::zoo {

inline constexpr int part_bytes = 4 * 8 * 32;  ///< Of a box: each block brings one, to both.

/// A block brings a box, from this row on, to both.
inline __device__ void bring(smem<f32> to, const tensor_map& x, smem<mbarrier> full, int row,
                             simt::Where where = simt::Where::here()) {
  tma_load_multicast<2, f32>(to, x, full, 0, row, 0, 0, where);
}

/// What the kernels have in shared memory: two boxes, and mbarriers behind them.
#define FLASHLADDER_CLUSTER_TILES                                            \
  auto&& tile = dynamic_tile<f32, 16, 32, "tile">(0);                        \
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(2 * part_bytes);        \
  auto&& empty = dynamic_tile<mbarrier, 1, 1, "empty">(2 * part_bytes + 16); \
  const int rank = static_cast<int>(blockIdx.x) % 2, t = static_cast<int>(threadIdx.x)

/// A block begins to copy to the other one, which may not have begun.
template <bool right>
__global__ void other_not_begun(const __grid_constant__ tensor_map x, gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  if (right) cluster_sync();
  __syncthreads();
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), 2 * part_bytes);
    bring(tile.at(8 * rank, 0), x, full.at(0, 0), 8 * rank);  // bug: other_not_begun
  }
  mbarrier_wait(full.at(0, 0), 0);
  b[128 * rank + t] = tile[t];
  (void)empty;
}

/// Nothing tells the other block's unit that the mbarriers are initialised.
template <bool right>
__global__ void unfenced_for_the_other(gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    if (right) fence_mbarrier_init();
  }
  cluster_sync();
  if (t == 0) mbarrier_arrive_in(1 - rank, full.at(0, 0));  // bug: unfenced_for_the_other
  mbarrier_wait(full.at(0, 0), 0);
  b[128 * rank + t] = 1.f;
  (void)tile, (void)empty;
}

/// A block ends, and the other one may not have said yet what it says to it.
template <bool right>
__global__ void ended_before_the_other(gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(empty.at(0, 0), 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  b[128 * rank + t] = 1.f;
  if (rank == 1 && t == 0) mbarrier_arrive_in(0, empty.at(0, 0));  // bug: ended_before_the_other
  if (right && rank == 0) mbarrier_wait(empty.at(0, 0), 0);
  (void)tile, (void)full;
}

/// The threads of a block say that they have read the first box, and then read it.
template <bool right>
__global__ void read_by_the_other(const __grid_constant__ tensor_map x, gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    mbarrier_init(empty.at(0, 0), 256);
    fence_mbarrier_init();
  }
  cluster_sync();
  for (int round = 0; round < 2; ++round) {
    if (t == 0) {
      if (round == 1 && rank == 0) mbarrier_wait(empty.at(0, 0), 0);
      mbarrier_arrive_expect_tx(full.at(0, 0), part_bytes);
      if (rank == 0) bring(tile.at(0, 0), x, full.at(0, 0), 8 * round);  // other: read_by_the_other
    }
    mbarrier_wait(full.at(0, 0), round);
    const bool too_early = !right && rank == 1;
    if (round == 0 && too_early) mbarrier_arrive_in(0, empty.at(0, 0));
    b[128 * rank + t] = tile[t];  // bug: read_by_the_other
    __syncwarp();                 // thread 0 of the first block is one of those who read
    if (round == 0 && !too_early) mbarrier_arrive_in(0, empty.at(0, 0));
  }
  cluster_sync();
}

/// A block is told of what it brings itself, and not of the other one's part.
template <bool right>
__global__ void told_of_half(const __grid_constant__ tensor_map x, gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (t == 0) bring(tile.at(8 * rank, 0), x, full.at(0, 0), 8 * rank);  // bug: told_of_half
  cluster_sync();
  if (t == 0) mbarrier_arrive_expect_tx(full.at(0, 0), right ? 2 * part_bytes : part_bytes);
  mbarrier_wait(full.at(0, 0), 0);
  b[128 * rank + t] = tile[t];
  (void)empty;
}

/// The fence of what a block has initialised stands behind the barrier at which others learn of it.
template <bool right>
__global__ void fenced_too_late(gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    if (right) fence_mbarrier_init();
  }
  cluster_sync();
  if (t == 0) {
    if (!right) fence_mbarrier_init();
    mbarrier_arrive_in(1 - rank, full.at(0, 0));  // bug: fenced_too_late
  }
  mbarrier_wait(full.at(0, 0), 0);
  b[128 * rank + t] = 1.f;
  (void)tile, (void)empty;
}

/// The threads of a block say that they have read a number, and then read it.
template <bool right>
__global__ void number_still_read(gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  auto&& number = dynamic_tile<int, 1, 1, "number">(2 * part_bytes + 32);
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    mbarrier_init(empty.at(0, 0), 128);
    fence_mbarrier_init();
  }
  cluster_sync();
  for (int round = 0; round < 2; ++round) {
    if (rank == 0) {
      if (t > 0) continue;
      if (round == 1) mbarrier_wait(empty.at(0, 0), 0);
      store_in(1, number.at(0, 0), 7, full.at(0, 0));  // other: number_still_read
      continue;
    }
    if (t == 0) mbarrier_arrive_expect_store(full.at(0, 0));
    mbarrier_wait(full.at(0, 0), round);
    if (round == 0 && !right) mbarrier_arrive_in(0, empty.at(0, 0));
    const int x = number(0, 0);  // bug: number_still_read
    b[t] = static_cast<float>(x);
    __syncwarp();
    if (round == 0 && right) mbarrier_arrive_in(0, empty.at(0, 0));
  }
  cluster_sync();
  (void)tile;
}

/// Nobody of the other block waits for what comes there.
template <bool right>
__global__ void brought_to_nobody(const __grid_constant__ tensor_map x, gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), part_bytes);
    if (rank == 0) bring(tile.at(0, 0), x, full.at(0, 0), 0);  // bug: brought_to_nobody
  }
  if (right || rank == 0) mbarrier_wait(full.at(0, 0), 0);
  b[128 * rank + t] = 1.f;
  (void)empty;
}

/// One block comes to a barrier of the cluster that the other one leaves out.
template <bool right>
__global__ void one_block_comes(gmem<f32> b) {
  if (right || blockIdx.x == 0) cluster_sync();  // bug: one_block_comes
  b[128 * blockIdx.x + threadIdx.x] = 1.f;
}

/// A block that is not there.
template <bool right>
__global__ void no_such_block(gmem<f32> b) {
  FLASHLADDER_CLUSTER_TILES;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (t == 0) mbarrier_arrive_in(right ? 1 - rank : 2, full.at(0, 0));  // bug: no_such_block
  mbarrier_wait(full.at(0, 0), 0);
  b[128 * rank + t] = 1.f;
  (void)tile, (void)empty;
}

}  // namespace flashladder::zoo
