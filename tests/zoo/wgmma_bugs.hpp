#pragma once
// More of the bug zoo: wgmma. As in bugs.hpp, each kernel has one mistake where `right` is false; the line
// that a report names ends in "bug: " and the kernel's name, the other line that it names in "other: ".
#include "common/ptx/cp_async.hpp"
#include "common/ptx/mma.hpp"
#include "common/ptx/tma.hpp"
#include "common/ptx/wgmma.hpp"

namespace flashladder::zoo {

/// What all of them begin with: 64 x 64 numbers for A and for B, K-major, 128 bytes a row, and a C.
#define BEGIN_WITH_A_B_AND_C                                                     \
  auto&& A = dynamic_tile<bf16, 64, 64, "A">(0);                                 \
  auto&& B = dynamic_tile<bf16, 64, 64, "B">(2 * 64 * 64);                       \
  const auto A_matrix = k_major<128, bf16>(A), B_matrix = k_major<128, bf16>(B); \
  const int t = threadIdx.x;                                                     \
  f32 C[8][4]
/// Ones in both.
#define FILL                               \
  for (int e = t; e < 64 * 64; e += 128) { \
    A[e] = bf16(f32(1.f));                 \
    B[e] = bf16(f32(1.f));                 \
  }
/// Ones in one tile, for the tensor cores to read.
#define FILL_ONE(tile)                                             \
  for (int e = t; e < 64 * 64; e += 128) tile[e] = bf16(f32(1.f)); \
  fence_proxy_async();                                             \
  __syncthreads()
/// Ones in A and B, likewise.
#define FILL_AND_FENCE      \
  FILL fence_proxy_async(); \
  __syncthreads()

/// The sums are used as if wgmma were done when it has been told.
template <bool right>
__global__ void sums_not_waited_for(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: sums_not_waited_for
  wgmma_commit();
  if (right) wgmma_wait<0>(C);
  b[t] = fmaxf(C[0][0], C[0][1]);
  wgmma_wait<0>(C);
}

/// The wait does not name the sums: the compiler may use them before it.
template <bool right>
__global__ void sums_not_named(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: sums_not_named
  wgmma_commit();
  if (right) {
    wgmma_wait<0>(C);
  } else {
    wgmma_wait<0>();
  }
  b[t] = fmaxf(C[0][0], C[0][1]);
}

/// The sums are scaled while the wgmma adds to them.
template <bool right>
__global__ void rescaled_too_early(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // other: rescaled_too_early
  wgmma_commit();
  if (!right) C[0][0] *= 2.f;
  wgmma_wait<0>(C);  // bug: rescaled_too_early
  b[t] = C[0][0] * 2.f;
}

/// Nothing orders the use of registers before the wgmma.
template <bool right>
__global__ void no_wgmma_fence(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  for (int x = 0; x < 8; ++x)
    for (int e = 0; e < 4; ++e) C[x][e] = 0.f;
  if (right) wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix);  // bug: no_wgmma_fence
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// The second product takes A from registers that were packed behind the only fence.
template <bool right>
__global__ void packed_behind_the_fence(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  f32 P[8][4];
  wgmma_fence();
  wgmma<bf16>(P, A_matrix, B_matrix, false);
  wgmma_commit();
  wgmma_wait<0>(P);
  const std::uint32_t P_registers[4] = {
      round_pair<bf16>(P[0][0], P[0][1]), round_pair<bf16>(P[0][2], P[0][3]),
      round_pair<bf16>(P[1][0], P[1][1]), round_pair<bf16>(P[1][2], P[1][3])};
  if (right) wgmma_fence();
  wgmma<bf16>(C, P_registers, B_matrix, false);  // bug: packed_behind_the_fence
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// The wgmma is in no group, so that no wait is for it.
template <bool right>
__global__ void not_committed(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // other: not_committed
  if (right) wgmma_commit();
  wgmma_wait<0>(C);  // bug: not_committed
  b[t] = C[0][0];
}

/// One group may be under way behind the wait, and it is the one that is meant.
template <bool right>
__global__ void one_group_too_many(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // other: one_group_too_many
  wgmma_commit();
  if (right) {
    wgmma_wait<0>(C);
  } else {
    wgmma_wait<1>(C);  // bug: one_group_too_many
  }
  b[t] = C[0][0];
}

/// Threads fill the tile, and do not make it visible to the tensor cores.
template <bool right>
__global__ void tile_without_proxy_fence(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  for (int e = t; e < 64 * 64; e += 128) A[e] = bf16(f32(1.f));
  fence_proxy_async();
  for (int e = t; e < 64 * 64; e += 128) B[e] = bf16(f32(1.f));  // other: tile_without_proxy_fence
  if (right) fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: tile_without_proxy_fence
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// Threads bring the tile by cp.async, which is a write of theirs like any other, and do not make it
/// visible.
template <bool right>
__global__ void copied_without_proxy_fence(gmem<const bf16> a, gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  if (t < 64) cp_async_16B<bf16>(B.at(t, 0), a + 8 * t, true);  // other: copied_without_proxy_fence
  cp_async_commit();
  cp_async_wait<0>();
  if (right) fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: copied_without_proxy_fence
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// The fence stands behind the barrier: it makes visible what this thread wrote, and not the others.
template <bool right>
__global__ void proxy_fence_behind_the_barrier(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  for (int e = t; e < 64 * 64; e += 128) B[e] = bf16(f32(1.f));
  fence_proxy_async();
  for (int e = t; e < 64 * 64; e += 128) A[e] = bf16(f32(1.f));  // other: proxy_fence_behind_the_barrier
  if (right) fence_proxy_async();
  __syncthreads();
  if (!right) fence_proxy_async();
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: proxy_fence_behind_the_barrier
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// No barrier between those who fill the tile and the wgmma.
template <bool right>
__global__ void tile_without_barrier(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  for (int e = t; e < 64 * 64; e += 128) B[e] = bf16(f32(1.f));
  fence_proxy_async();
  __syncthreads();
  for (int e = t; e < 64 * 64; e += 128) A[e] = bf16(f32(1.f));  // other: tile_without_barrier
  fence_proxy_async();
  if (right) __syncthreads();
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: tile_without_barrier
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// The next tile is written while the tensor cores read this one.
template <bool right>
__global__ void tile_written_in_flight(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: tile_written_in_flight
  wgmma_commit();
  if (right) {
    wgmma_wait<0>(C);
    __syncthreads();
  }
  B[t] = bf16(f32(2.f));  // other: tile_written_in_flight
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// One thread says for all that the tile has been read; other warps may still read it.
template <bool right>
__global__ void released_for_others(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  auto&& bars = dynamic_tile<mbarrier, 2, 1, "bars">(4 * 64 * 64);  // full, empty
  if (t == 0) {
    mbarrier_init(bars.at(0, 0), 1);
    mbarrier_init(bars.at(1, 0), right ? 128 : 1);
    fence_mbarrier_init();
  }
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: released_for_others
  wgmma_commit();
  wgmma_wait<0>(C);
  if (right || t == 0) mbarrier_arrive(bars.at(1, 0));
  if (t == 0) {
    mbarrier_wait(bars.at(1, 0), 0);
    mbarrier_arrive_expect_tx(bars.at(0, 0), 2 * 8 * 64);
    tma_load<bf16>(B, map, bars.at(0, 0), 0, 0, 0, 0);  // other: released_for_others
  }
  mbarrier_wait(bars.at(0, 0), 0);
  b[t] = C[0][0];
}

/// The tile is filled again before the wgmma that reads it has been waited for.
template <bool right>
__global__ void released_before_the_wait(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  auto&& bars = dynamic_tile<mbarrier, 2, 1, "bars">(4 * 64 * 64);  // full, empty
  if (t == 0) {
    mbarrier_init(bars.at(0, 0), 1);
    mbarrier_init(bars.at(1, 0), 128);
    fence_mbarrier_init();
  }
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: released_before_the_wait
  wgmma_commit();
  if (right) wgmma_wait<0>(C);
  mbarrier_arrive(bars.at(1, 0));
  if (t == 0) {
    mbarrier_wait(bars.at(1, 0), 0);
    mbarrier_arrive_expect_tx(bars.at(0, 0), 2 * 8 * 64);
    tma_load<bf16>(B, map, bars.at(0, 0), 0, 0, 0, 0);  // other: released_before_the_wait
  }
  mbarrier_wait(bars.at(0, 0), 0);
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// TMA writes the tile with a swizzle of 128 bytes, and it is described with 64. The map has boxes of 8
/// rows.
template <bool right>
__global__ void other_swizzle(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(4 * 64 * 64);
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  FILL_AND_FENCE;
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), 2 * 8 * 64);
    tma_load<bf16>(A, map, full.at(0, 0), 0, 0, 0, 0);  // other: other_swizzle
  }
  mbarrier_wait(full.at(0, 0), 0);
  const auto of_64_bytes = k_major<64, bf16>(A);
  wgmma_fence();
  wgmma<bf16>(C, right ? A_matrix : of_64_bytes, B_matrix, false);  // bug: other_swizzle
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// Each warp describes the matrix from its own rows on; wgmma's A has those of all four warps.
template <bool right>
__global__ void matrix_of_a_warp(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  const auto mine = A_matrix + (right ? 0 : t / 32 * 16 * 128);
  wgmma_fence();
  wgmma<bf16>(C, mine, B_matrix, false);  // bug: matrix_of_a_warp
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// What is added to a descriptor is in bytes; here it is 4 rows, which is no start of a pattern.
template <bool right>
__global__ void inside_a_pattern(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix + (right ? 32 : 4 * 128), false);  // bug: inside_a_pattern
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// The second half of the inner dimension of a tile with one panel.
template <bool right>
__global__ void beyond_the_tile(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix + (right ? 64 : 64 * 128), false);  // bug: beyond_the_tile
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// A step of 64 bytes is taken twice in a row of 128: the last 16 numbers are those of the next row.
template <bool right>
__global__ void beyond_the_row(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix + (right ? 96 : 112), B_matrix, false);  // bug: beyond_the_row
  wgmma_commit();
  wgmma_wait<0>(C);
  b[t] = C[0][0];
}

/// The tile is a declared array.
template <bool right>
__global__ void declared_operand(gmem<f32> b) {
  const int t = threadIdx.x;
  f32 C[8][4];
  if (right) {
    auto&& A = dynamic_tile<bf16, 64, 64, "A">(0);
    FILL_ONE(A);
    wgmma_fence();
    wgmma<bf16>(C, k_major<128, bf16>(A), k_major<128, bf16>(A), false);
    wgmma_commit();
    wgmma_wait<0>(C);
  } else {
    __shared__ smem_array<bf16, 64, 64, "A"> A;
    FILL_ONE(A);
    wgmma_fence();
    wgmma<bf16>(C, k_major<128, bf16>(A), k_major<128, bf16>(A), false);  // bug: declared_operand
    wgmma_commit();
    wgmma_wait<0>(C);
  }
  b[t] = C[0][0];
}

/// The kernel ends while the tensor cores may still read its shared memory.
template <bool right>
__global__ void wgmma_left_alone(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  wgmma_fence();
  wgmma<bf16>(C, A_matrix, B_matrix, false);  // bug: wgmma_left_alone
  wgmma_commit();
  if (right) wgmma_wait<0>(C);
  b[t] = 1.f;
}

/// Three warps come to the wgmma, and the fourth does not.
template <bool right>
__global__ void three_warps(gmem<f32> b) {
  BEGIN_WITH_A_B_AND_C;
  FILL_AND_FENCE;
  if (right || t < 96) {
    wgmma_fence();
    wgmma<bf16>(C, A_matrix, B_matrix, false);
    wgmma_commit();
    wgmma_wait<0>(C);  // bug: three_warps
    b[t] = C[0][0];
  }
}

#undef BEGIN_WITH_A_B_AND_C
#undef FILL
#undef FILL_ONE
#undef FILL_AND_FENCE

}  // namespace flashladder::zoo
