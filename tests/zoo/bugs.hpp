#pragma once
// The bug zoo: each kernel is wrong in one way, and right when its template argument says so. The line that
// a report must name carries the comment "bug: <specimen>", and where two lines are at odds the second one
// carries "other: <specimen>".
#include "common/ptx/cp_async.hpp"
#include "common/ptx/dependent_launch.hpp"
#include "common/ptx/elect.hpp"
#include "common/ptx/mbarrier.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/tensor_map.hpp"
#include "common/simt/simt_host.hpp"

namespace flashladder::zoo {

/// The grid is rounded up, and the tail is not masked.
template <bool right>
__global__ void tail(gmem<f32> a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (right && i >= n) return;
  a[i] = 1.f;  // bug: tail
}

/// The loop over columns is one too long.
template <bool right>
__global__ void column(gmem<f32> a) {
  __shared__ smem_array<f32, 32, 33, "tile"> tile;
  const int t = threadIdx.x;
  for (int j = 0; j < (right ? 33 : 34); ++j) tile(t, j) = 1.f;  // bug: column
  a[t] = tile(t, 0);
}

/// Rows are padded to d + 1 elements, and still loaded four at a time.
template <bool right>
__global__ void padded_row(gmem<const f32> a, gmem<f32> b, int d) {
  const int t = threadIdx.x;
  const int stride = right ? d + 4 : d + 1;
  const float4 x = load4(a + t * stride);  // bug: padded_row
  b[t] = x.x + x.w;
}

/// The same in shared memory.
template <bool right>
__global__ void padded_shared_row(gmem<f32> a) {
  __shared__ smem_array<f32, 32, right ? 36 : 33, "tile"> tile;
  const int t = threadIdx.x;
  store4(tile.at(t, 0), make_float4(1.f, 2.f, 3.f, 4.f));  // bug: padded_shared_row
  a[t] = tile(t, 3);
}

/// No barrier between filling the tile and reading it.
template <bool right>
__global__ void filled(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 64, 1, "tile"> tile;
  const int t = threadIdx.x;
  tile[t] = a[t];  // other: filled
  if (right) __syncthreads();
  b[t] = tile[63 - t];  // bug: filled
}

/// No barrier between reading the tile and filling it again.
template <bool right>
__global__ void refilled(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 64, 1, "tile"> tile;
  const int t = threadIdx.x;
  for (int k = 0; k < 3; ++k) {
    tile[t] = a[k * 64 + t];  // other: refilled
    __syncthreads();
    b[k * 64 + t] = tile[63 - t];  // bug: refilled
    if (right) __syncthreads();
  }
}

/// A barrier inside a branch that only one warp takes.
template <bool right>
__global__ void branch(gmem<f32> a) {
  const int t = threadIdx.x;
  if (right || t < 32) {
    a[t] = 1.f;
    __syncthreads();  // other: branch
  }
  __syncthreads();  // bug: branch
  a[t] = 2.f;
}

/// Threads out of range return before the barrier.
template <bool right>
__global__ void early_return(gmem<f32> a, int n) {
  const int t = threadIdx.x;
  if (!right && t >= n) return;
  __syncthreads();  // bug: early_return
  if (t < n) a[t] = 1.f;
}

/// A loop with a barrier that goes on longer in one warp.
template <bool right>
__global__ void uneven_loop(gmem<f32> a) {
  const int t = threadIdx.x;
  const int rounds = right ? 3 : 2 + t / 32;
  for (int k = 0; k < rounds; ++k) {
    a[t] = 1.f;
    __syncthreads();  // bug: uneven_loop
  }
}

/// A named barrier expects more threads than come.
template <bool right>
__global__ void count(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 64) named_barrier_sync(1, right ? 64 : 96);  // bug: count
  a[t] = 1.f;
}

/// Half of the warp shuffles, with the mask of a whole warp.
template <bool right>
__global__ void half_warp(gmem<f32> a) {
  const int t = threadIdx.x;
  f32 x = 1.f;
  if (t < 16) x = __shfl_xor_sync(right ? 0xffffu : ~0u, x, 1);  // bug: half_warp
  a[t] = x;
}

/// The lanes that a shuffle waits for wait at a barrier.
template <bool right>
__global__ void shuffle_or_barrier(gmem<f32> a) {
  const int t = threadIdx.x;
  f32 x = 1.f;
  if (t < 16) x = __shfl_xor_sync(right ? 0xffffu : ~0u, x, 1);  // bug: shuffle_or_barrier
  __syncthreads();
  a[t] = x;
}

/// Both sides of a branch shuffle, each with the mask of a whole warp.
template <bool right>
__global__ void two_shuffles(gmem<f32> a) {
  const int t = threadIdx.x;
  f32 x = 1.f;
  if (t % 2 == 0) {
    x = __shfl_xor_sync(right ? 0x55555555u : ~0u, x, 2);  // other: two_shuffles
  } else {
    x = __shfl_xor_sync(right ? 0xaaaaaaaau : ~0u, x, 2);  // bug: two_shuffles
  }
  a[t] = x;
}

/// A shuffle reads a lane that its mask leaves out.
template <bool right>
__global__ void outside_mask(gmem<f32> a) {
  const int t = threadIdx.x;
  f32 x = 1.f;
  if (t < 16) x = __shfl_xor_sync(0xffffu, x, right ? 8 : 16);  // bug: outside_mask
  a[t] = x;
}

/// A reduction over warps in which every warp reads all parts at once.
template <bool right>
__global__ void reduction(gmem<f32> a) {
  __shared__ smem_array<f32, 4, 1, "parts"> parts;
  const int t = threadIdx.x;
  if (t % 32 == 0) parts[t / 32] = 1.f;  // other: reduction
  if (right)
    __syncthreads();
  else
    __syncwarp();
  a[t] = parts[(t / 32 + 1) % 4];  // bug: reduction
}

/// A lane reads what its neighbour wrote, and trusts the warp to run in step.
template <bool right>
__global__ void in_step(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  const int t = threadIdx.x;
  tile[t] = a[t];  // other: in_step
  if (right) __syncwarp();
  b[t] = tile[t ^ 1];  // bug: in_step
}

/// The output's offset leaves out the block.
template <bool right>
__global__ void same_output(gmem<f32> a) {
  const int t = threadIdx.x;
  a[(right ? blockIdx.x * 64 : 0) + t] = 1.f;  // bug: same_output
}

/// A block reads what another block of the same launch writes.
template <bool right>
__global__ void neighbour(gmem<f32> a) {
  const int t = threadIdx.x;
  const int mine = blockIdx.x * 64 + t;
  const int other = (blockIdx.x + (right ? 0 : 1)) % 3 * 64 + t;
  f32 x = a[other];   // bug: neighbour
  a[mine] = x + 1.f;  // other: neighbour
}

/// The last element of the tile is never filled.
template <bool right>
__global__ void unfilled(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 64, 1, "tile"> tile;
  const int t = threadIdx.x;
  if (right || t < 63) tile[t] = a[t];
  __syncthreads();
  b[t] = tile[t];  // bug: unfilled
}

/// An output that is added to before anything was written.
template <bool right>
__global__ void accumulate(gmem<f32> a) {
  const int t = threadIdx.x;
  if (right) a[t] = 0.f;
  a[t] += 1.f;  // bug: accumulate
}

/// The asynchronous copy is not waited for.
template <bool right>
__global__ void no_wait(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 128, 1, "tile"> tile;
  const int t = threadIdx.x;
  cp_async_16B(tile.at(4 * t, 0), a + 4 * t);  // other: no_wait
  cp_async_commit();
  if (right) cp_async_wait<0>();
  __syncthreads();
  b[t] = tile[127 - t];  // bug: no_wait
}

/// The wait lets one group too many stay under way.
template <bool right>
__global__ void short_wait(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 2, 128, "tile"> tile;
  const int t = threadIdx.x;
  for (int stage = 0; stage < 2; ++stage) {
    cp_async_16B(tile.at(stage, 4 * t), a + stage * 128 + 4 * t);  // other: short_wait
    cp_async_commit();
  }
  cp_async_wait<right ? 0 : 1>();
  __syncthreads();
  b[t] = tile(0, t);
  b[32 + t] = tile(1, t);  // bug: short_wait
}

/// Each thread waits for its own copies, and reads those of others without a barrier.
template <bool right>
__global__ void waited_alone(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 256, 1, "tile"> tile;
  const int t = threadIdx.x;
  cp_async_16B(tile.at(4 * t, 0), a + 4 * t);  // other: waited_alone
  cp_async_commit();
  __syncthreads();
  cp_async_wait<0>();
  if (right) __syncthreads();
  b[t] = tile[(4 * t + 128) % 256];  // bug: waited_alone
}

/// The last, partial tile is skipped.
template <bool right>
__global__ void skipped(gmem<f32> a, int n) {
  const int tiles = right ? (n + 31) / 32 : n / 32;
  for (int j = 0; j < tiles; ++j) {
    const int i = j * 32 + threadIdx.x;
    if (i < n) a[i] = 1.f;
  }
}

/// row * stride in 32 bits. (Unsigned, because the sanitizers would stop at the signed overflow itself.)
template <bool right>
__global__ void overflow(gmem<unsigned char> a, int row, int stride) {
  const int64_t wide = int64_t(row) * stride;
  const int narrow = int(unsigned(row) * unsigned(stride));
  a[(right ? wide : narrow) + int64_t(threadIdx.x)] = 1;  // bug: overflow
}

/// The loop's counter does not move.
template <bool right>
__global__ void stuck_loop(gmem<f32> a) {
  f32 sum = 0.f;
  for (int k = 0; k < 4; k += right ? 1 : 0) {
    f32 x = a[k];  // bug: stuck_loop
    sum += x;
  }
  a[32 + threadIdx.x] = sum;
}

/// More shared memory than there is.
template <bool right>
__global__ void greedy(gmem<f32> a) {
  __shared__ smem_array<f32, right ? 32 : 1024, 64, "tile"> tile;  // bug: greedy
  tile[threadIdx.x] = 1.f;
  a[threadIdx.x] = tile[threadIdx.x];
}

/// Warp 0 tells at a named barrier that the tile is full, goes on without waiting, and fills it then.
template <bool right>
__global__ void arrived_early(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    if (!right) named_barrier_arrive(1, 64);
    tile[lane] = a[lane];  // other: arrived_early
    if (right) named_barrier_arrive(1, 64);
  } else {
    named_barrier_sync(1, 64);
    b[lane] = tile[31 - lane];  // bug: arrived_early
  }
}

// --- mbarriers: warp 0 writes tiles of 32 numbers one after the other into one buffer, warp 1 reads them

/// The consumer lets the producer go on before it has read the tile.
template <bool right>
__global__ void released_early(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  __shared__ smem_array<mbarrier, 1, 1, "empty"> empty;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(full.at(0, 0), 32);
    mbarrier_init(empty.at(0, 0), 32);
  }
  __syncthreads();
  for (int k = 0; k < 3; ++k) {
    if (warp == 0) {
      mbarrier_wait(empty.at(0, 0), (k + 1) % 2);  // passes at once for k = 0
      tile[lane] = a[32 * k + lane];               // other: released_early
      mbarrier_arrive(full.at(0, 0));
    } else {
      mbarrier_wait(full.at(0, 0), k % 2);
      if (!right) mbarrier_arrive(empty.at(0, 0));
      b[32 * k + lane] = tile[31 - lane];  // bug: released_early
      if (right) mbarrier_arrive(empty.at(0, 0));
    }
  }
}

/// The second tile has a buffer and an mbarrier of its own, and the consumer waits at the first one again:
/// that phase has ended.
template <bool right>
__global__ void other_mbarrier(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 2, 32, "tile"> tile;
  __shared__ smem_array<mbarrier, 2, 1, "full"> full;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(full.at(0, 0), 32);
    mbarrier_init(full.at(1, 0), 32);
  }
  __syncthreads();
  for (int k = 0; k < 2; ++k) {
    if (warp == 0) {
      tile(k, lane) = a[32 * k + lane];  // other: other_mbarrier
      mbarrier_arrive(full.at(k, 0));
    } else {
      mbarrier_wait(full.at(right ? k : 0, 0), 0);
      b[32 * k + lane] = tile(k, 31 - lane);  // bug: other_mbarrier
    }
  }
}

/// The producer waits for the parity of the phase under way: both wait for each other.
template <bool right>
__global__ void wrong_parity(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  __shared__ smem_array<mbarrier, 1, 1, "empty"> empty;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(full.at(0, 0), 32);
    mbarrier_init(empty.at(0, 0), 32);
  }
  __syncthreads();
  if (warp == 0) {
    mbarrier_wait(empty.at(0, 0), right ? 1 : 0);  // bug: wrong_parity
    tile[lane] = a[lane];
    mbarrier_arrive(full.at(0, 0));
  } else {
    mbarrier_wait(full.at(0, 0), 0);
    b[lane] = tile[31 - lane];
    mbarrier_arrive(empty.at(0, 0));
  }
}

/// The mbarrier takes an arrival of each thread, and one lane arrives for its warp.
template <bool right>
__global__ void too_few_arrivals(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) mbarrier_init(full.at(0, 0), right ? 1 : 32);
  __syncthreads();
  if (warp == 0) {
    tile[lane] = a[lane];
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full.at(0, 0));
  } else {
    mbarrier_wait(full.at(0, 0), 0);  // bug: too_few_arrivals
    b[lane] = tile[31 - lane];
  }
}

/// No barrier between the initialisation of the mbarrier and its use by others.
template <bool right>
__global__ void not_ready(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) mbarrier_init(full.at(0, 0), 32);
  if (right) __syncthreads();
  if (warp == 0) {
    if (!right) __syncwarp();
    tile[lane] = a[lane];
    mbarrier_arrive(full.at(0, 0));
  } else {
    mbarrier_wait(full.at(0, 0), 0);  // bug: not_ready
    b[lane] = tile[31 - lane];
  }
}

/// Arrivals are given where the number of bytes should be, or the other way round.
template <bool right>
__global__ void no_arrivals(gmem<f32> a) {
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  if (threadIdx.x == 0) mbarrier_init(full.at(0, 0), right ? 32 : 0);  // bug: no_arrivals
  __syncthreads();
  mbarrier_arrive(full.at(0, 0));
  mbarrier_wait(full.at(0, 0), 0);
  a[threadIdx.x] = 1.f;
}

/// An mbarrier is initialised again for the next tile.
template <bool right>
__global__ void initialised_again(gmem<f32> a) {
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  for (int k = 0; k < 2; ++k) {
    if (threadIdx.x == 0 && (k == 0 || !right)) mbarrier_init(full.at(0, 0), 32);  // bug: initialised_again
    __syncthreads();
    mbarrier_arrive(full.at(0, 0));
    mbarrier_wait(full.at(0, 0), right ? k : 0);
  }
  a[threadIdx.x] = 1.f;
}

/// The number of the phase is given where its parity is asked for.
template <bool right>
__global__ void phase_for_parity(gmem<f32> a) {
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  if (threadIdx.x == 0) mbarrier_init(full.at(0, 0), 32);
  __syncthreads();
  for (int k = 0; k < 3; ++k) {
    mbarrier_arrive(full.at(0, 0));
    mbarrier_wait(full.at(0, 0), right ? k % 2 : k);  // bug: phase_for_parity
  }
  a[threadIdx.x] = 1.f;
}

/// One lane initialises, and the others of its warp go on without __syncwarp.
template <bool right>
__global__ void not_ready_in_the_warp(gmem<f32> a) {
  __shared__ smem_array<mbarrier, 1, 1, "full"> full;
  if (threadIdx.x == 0) mbarrier_init(full.at(0, 0), 32);
  if (right) __syncwarp();
  mbarrier_arrive(full.at(0, 0));  // bug: not_ready_in_the_warp
  mbarrier_wait(full.at(0, 0), 0);
  a[threadIdx.x] = 1.f;
}

// --- TMA: boxes of 8 rows of 32 numbers, 1024 bytes; the map is that of a, or of b

constexpr int box_bytes = 4 * 8 * 32;

/// What all kernels of this kind begin with.
#define BEGIN_WITH_A_TILE_AND_AN_MBARRIER(fenced)           \
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);        \
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(1024); \
  const int t = threadIdx.x;                                \
  if (t == 0) {                                             \
    mbarrier_init(full.at(0, 0), 1);                        \
    if (fenced) fence_mbarrier_init();                      \
  }                                                         \
  __syncthreads()

/// The mbarrier's initialisation is not made visible to the unit that copies.
template <bool right>
__global__ void unfenced_mbarrier(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(right);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);  // bug: unfenced_mbarrier
  }
  mbarrier_wait(full.at(0, 0), 0);
  b[t] = tile[t];
}

/// Twice the bytes are announced that come.
template <bool right>
__global__ void too_many_bytes(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), right ? box_bytes : 2 * box_bytes);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);
  }
  mbarrier_wait(full.at(0, 0), 0);  // bug: too_many_bytes
  b[t] = tile[t];
}

/// Of the last, ragged box only the bytes inside the tensor are announced: a whole box comes.
template <bool right>
__global__ void ragged_box(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), right ? box_bytes : box_bytes / 2);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 12, 0, 0);  // bug: ragged_box
  }
  mbarrier_wait(full.at(0, 0), 0);
  b[t] = tile[t];
}

/// The tile is read while it is being copied.
template <bool right>
__global__ void copy_not_waited_for(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);  // other: copy_not_waited_for
  }
  if (right) mbarrier_wait(full.at(0, 0), 0);
  __syncthreads();
  b[t] = tile[t];  // bug: copy_not_waited_for
}

/// The bytes are announced to one mbarrier, and come to another one.
template <bool right>
__global__ void bytes_elsewhere(const __grid_constant__ tensor_map map, gmem<f32> b) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, 2, 1, "full">(1024);
  const int t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    mbarrier_init(full.at(1, 0), 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(1, 0), box_bytes);
    tma_load<f32>(tile, map, full.at(right ? 1 : 0, 0), 0, 0, 0, 0);  // bug: bytes_elsewhere
  }
  mbarrier_wait(full.at(1, 0), 0);
  b[t] = tile[t];
}

/// The next box comes while other warps may still read this one.
template <bool right>
__global__ void copied_over(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  for (int k = 0; k < 2; ++k) {
    if (t == 0) {
      mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
      tma_load<f32>(tile, map, full.at(0, 0), 0, 8 * k, 0, 0);  // other: copied_over
    }
    mbarrier_wait(full.at(0, 0), k % 2);
    if (!right) __syncthreads();
    b[64 * k + t] = tile[t];  // bug: copied_over
    if (right) __syncthreads();
  }
}

/// Two boxes come to one place.
template <bool right>
__global__ void two_copies(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), right ? box_bytes : 2 * box_bytes);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);              // other: two_copies
    if (!right) tma_load<f32>(tile, map, full.at(0, 0), 0, 8, 0, 0);  // bug: two_copies
  }
  mbarrier_wait(full.at(0, 0), 0);
  b[t] = tile[t];
}

/// The unit stores what threads have written, and nobody made it visible to the unit.
template <bool right>
__global__ void no_proxy_fence(const __grid_constant__ tensor_map map) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;  // other: no_proxy_fence
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store<f32>(map, tile, 0, 0, 0, 0);  // bug: no_proxy_fence
    tma_commit();
    tma_wait_read<0>();
  }
}

/// The thread that starts the store executes the fence, behind the barrier: it is for its own writes alone.
template <bool right>
__global__ void fence_of_the_reader(const __grid_constant__ tensor_map map) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;  // other: fence_of_the_reader
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    fence_proxy_async();
    tma_store<f32>(map, tile, 0, 0, 0, 0);  // bug: fence_of_the_reader
    tma_commit();
    tma_wait_read<0>();
  }
}

/// The tile is written again while it is being stored.
template <bool right>
__global__ void overwritten_store(const __grid_constant__ tensor_map map) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store<f32>(map, tile, 0, 0, 0, 0);  // bug: overwritten_store
    tma_commit();
    if (right) tma_wait_read<0>();
  }
  __syncthreads();
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 2.f;  // other: overwritten_store
  if (!right && t == 0) tma_wait_read<0>();
}

/// A tile begins where TMA cannot write.
template <bool right>
__global__ void tile_at_64_bytes(const __grid_constant__ tensor_map map, gmem<f32> b) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(right ? 128 : 64);
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(1200);
  const int t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);  // bug: tile_at_64_bytes
  }
  __syncthreads();
  mbarrier_wait(full.at(0, 0), 0);
  b[t] = tile[t];
}
/// The tile is a declared array.
template <bool right>
__global__ void declared_tile(const __grid_constant__ tensor_map map, gmem<f32> b) {
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(1024);
  const int t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
  }
  __syncthreads();
  if (right) {
    auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
    if (t == 0) tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);
    mbarrier_wait(full.at(0, 0), 0);
    b[t] = tile[t];
  } else {
    __shared__ smem_array<f32, 8, 32, "tile"> tile;
    if (t == 0) tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);  // bug: declared_tile
  }
}

/// Nobody waits for the last box.
template <bool right>
__global__ void load_left_alone(const __grid_constant__ tensor_map map) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);  // bug: load_left_alone
  }
  if (right) mbarrier_wait(full.at(0, 0), 0);
}

/// The thread ends while its store may still read the tile.
template <bool right>
__global__ void store_left_alone(const __grid_constant__ tensor_map map) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store<f32>(map, tile, 0, 0, 0, 0);  // bug: store_left_alone
    tma_commit();
    if (right) tma_wait_read<0>();
  }
}

/// No barrier between the writes of the threads and the store of the unit.
template <bool right>
__global__ void stored_too_early(const __grid_constant__ tensor_map map) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 0.f;
  fence_proxy_async();
  __syncthreads();
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;  // other: stored_too_early
  fence_proxy_async();
  if (right) __syncthreads();
  if (t == 63) {
    tma_store<f32>(map, tile, 0, 0, 0, 0);  // bug: stored_too_early
    tma_commit();
  }
  __syncthreads();
  if (t == 63) tma_wait_read<0>();
}

/// One arrival more than the phase takes, while its bytes are still to come.
template <bool right>
__global__ void second_arrival(const __grid_constant__ tensor_map map, gmem<f32> b) {
  BEGIN_WITH_A_TILE_AND_AN_MBARRIER(true);
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), box_bytes);
    if (!right) mbarrier_arrive(full.at(0, 0));  // bug: second_arrival
    tma_load<f32>(tile, map, full.at(0, 0), 0, 0, 0, 0);
  }
  mbarrier_wait(full.at(0, 0), 0);
  b[t] = tile[t];
}
#undef BEGIN_WITH_A_TILE_AND_AN_MBARRIER

// --- elect.sync

/// The election is held in a branch that only some lanes take.
template <bool right>
__global__ void elected_by_some(gmem<f32> a) {
  const int t = threadIdx.x;
  if (right) {
    if (elect_one()) a[t] = 1.f;
  } else if (t < 16) {
    if (elect_one()) a[t] = 1.f;  // bug: elected_by_some
  }
}

/// The other lanes read what the elected one wrote, and nothing orders that.
template <bool right>
__global__ void election_for_barrier(gmem<f32> a) {
  __shared__ smem_array<f32, 1, 1, "tile"> tile;
  if (elect_one()) tile[0] = 1.f;  // other: election_for_barrier
  elect_one();
  if (right) __syncwarp();
  a[threadIdx.x] = tile[0];  // bug: election_for_barrier
}

// --- stmatrix: warp 0 stores four matrices, 32 rows of 8 numbers

/// The other warp reads them, and no barrier is between.
template <bool right>
__global__ void stored_matrices(gmem<f32> b) {
  __shared__ smem_array<f16, 32, 8, "tile"> tile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t r[4] = {};
  if (warp == 0) stmatrix_x4<f16>(tile.at(lane, 0), r);  // other: stored_matrices
  if (right) __syncthreads();
  if (warp == 1) b[lane] = f32(f16(tile(lane, 3)));  // bug: stored_matrices
}

/// A lane reads a row whose address another lane gave: that lane has written it.
template <bool right>
__global__ void own_fragment(gmem<f32> b) {
  __shared__ smem_array<f16, 32, 8, "tile"> tile;
  const int lane = threadIdx.x;
  const std::uint32_t r[4] = {};
  stmatrix_x4_trans<f16>(tile.at(lane, 0), r);  // other: own_fragment
  if (right) __syncwarp();
  b[lane] = f32(f16(tile(lane / 4, 2 * (lane % 4))));  // bug: own_fragment
}

/// A padded row is no multiple of 16 bytes.
template <bool right>
__global__ void padded_matrices(gmem<f32> b) {
  __shared__ smem_array<f16, 32, right ? 16 : 12, "tile"> tile;
  const int lane = threadIdx.x;
  const std::uint32_t r[4] = {};
  stmatrix_x4<f16>(tile.at(lane, 0), r);  // bug: padded_matrices
  b[lane] = 1.f;
}

/// The unit stores them, and nobody made them visible to the unit.
template <bool right>
__global__ void unfenced_matrices(const __grid_constant__ tensor_map map) {
  auto&& tile = dynamic_tile<f16, 64, 8, "tile">(0);
  const int t = threadIdx.x;
  const std::uint32_t r[4] = {};
  stmatrix_x4<f16>(tile.at(t, 0), r);  // other: unfenced_matrices
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    tma_store<f16>(map, tile, 0, 0, 0, 0);  // bug: unfenced_matrices
    tma_commit();
    tma_wait_read<0>();
  }
}

// --- setmaxnreg: three warpgroups, with 168 registers a thread at launch, 504 of three threads

/// A warp of the warpgroup keeps more registers than the others.
template <bool right>
__global__ void uneven_warpgroup(gmem<f32> a) {
  const int t = threadIdx.x;
  if (right || t % 128 < 96) {
    registers_down<24>();  // other: uneven_warpgroup
  } else {
    registers_down<32>();  // bug: uneven_warpgroup
  }
  if (t % 32 == 0) a[t] = 1.f;
}

/// One warp of the producers' warpgroup works, and it alone gives registers back.
template <bool right>
__global__ void one_warp_gives(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < (right ? 128 : 32)) registers_down<40>();  // bug: one_warp_gives
  if (t == 0) a[t] = 1.f;
}

/// The consumers ask for more than the producers give back.
template <bool right>
__global__ void greedy_warpgroups(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 128) {
    registers_down<right ? 24 : 40>();
  } else {
    registers_up<240>();  // bug: greedy_warpgroups
  }
  if (t % 128 == 0) a[t] = 1.f;
}

/// A barrier that the consumers come to only with their registers stands before what gives them back.
template <bool right>
__global__ void given_too_late(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 128) {
    if (right) registers_down<24>();
    named_barrier_sync(1, 384);
    if (!right) registers_down<24>();
  } else {
    registers_up<240>();  // bug: given_too_late
    named_barrier_sync(1, 384);
  }
  if (t % 128 == 0) a[t] = 1.f;
}

/// What should take registers says down.
template <bool right>
__global__ void raised_by_down(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 128) {
    registers_down<24>();
  } else if (right) {
    registers_up<240>();
  } else {
    registers_down<240>();  // bug: raised_by_down
  }
  if (t % 128 == 0) a[t] = 1.f;
}

/// One of two consumers asks for fewer than it has at launch, which is what the other one asks for.
template <bool right>
__global__ void lowered_by_up(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 128) {
    registers_down<24>();
  } else if (t < 256) {
    registers_up<160>();  // other: lowered_by_up
  } else {
    if (right) registers_down<120>();
    if (!right) registers_up<120>();  // bug: lowered_by_up
  }
  if (t % 128 == 0) a[t] = 1.f;
}

/// Registers are given back twice, and nothing makes sure that the first time is over for all four warps.
template <bool right>
__global__ void twice_in_a_row(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 128) {
    registers_down<120>();  // other: twice_in_a_row
    if (right) named_barrier_sync(1, 128);
    registers_down<24>();  // bug: twice_in_a_row
  }
  if (t % 128 == 0) a[t] = 1.f;
}

/// The second time asks for more.
template <bool right>
__global__ void down_and_up(gmem<f32> a) {
  const int t = threadIdx.x;
  if (t < 128) {
    registers_down<24>();  // other: down_and_up
    named_barrier_sync(1, 128);
    registers_down<right ? 24 : 40>();  // bug: down_and_up
  }
  if (t % 128 == 0) a[t] = 1.f;
}

// --- bulk reductions: 64 threads fill 256 numbers, and one of them adds these to a

/// Nobody made the numbers visible to the unit.
template <bool right>
__global__ void unfenced_reduction(gmem<f32> a) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;  // other: unfenced_reduction
  if (right) fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    bulk_reduce_add(a, tile, box_bytes);  // bug: unfenced_reduction
    tma_commit();
    tma_wait_read<0>();
  }
}

/// The tile is filled again while it is being added.
template <bool right>
__global__ void refilled_reduction(gmem<f32> a) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int k = 0; k < 2; ++k) {
    for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;  // other: refilled_reduction
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
      bulk_reduce_add(a, tile, box_bytes);  // bug: refilled_reduction
      tma_commit();
      if (right) tma_wait_read<0>();
    }
    __syncthreads();
  }
  if (t == 0) tma_wait_read<0>();
}

/// Of two reductions the wait lets the younger one go on.
template <bool right>
__global__ void younger_reduction(gmem<f32> a) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    for (int half = 0; half < 2; ++half) {
      bulk_reduce_add(a + 128 * half, tile.at(4 * half, 0), box_bytes / 2);  // bug: younger_reduction
      tma_commit();
    }
    tma_wait_read<right ? 0 : 1>();
  }
  __syncthreads();
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 2.f;  // other: younger_reduction
  if (t == 0) tma_wait_read<0>();
}

/// The thread ends while its reduction may still read the tile.
template <bool right>
__global__ void reduction_left_alone(gmem<f32> a) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    bulk_reduce_add(a, tile, box_bytes);  // bug: reduction_left_alone
    tma_commit();
    if (right) tma_wait_read<0>();
  }
}

/// Elements are given where bytes are asked for, of a row of 30.
template <bool right>
__global__ void elements_for_bytes(gmem<f32> a) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    bulk_reduce_add(a, tile, right ? 4 * 28 : 28);  // bug: elements_for_bytes
    tma_commit();
    tma_wait_read<0>();
  }
}

/// One block adds where another one stores.
template <bool right>
__global__ void added_and_stored(gmem<f32> a) {
  auto&& tile = dynamic_tile<f32, 8, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int e = t; e < 8 * 32; e += 64) tile[e] = 1.f;
  fence_proxy_async();
  __syncthreads();
  if (blockIdx.x == 1) {
    if (!right) a[t] = 0.f;  // other: added_and_stored
  } else if (t == 0) {
    bulk_reduce_add(a, tile, box_bytes);  // bug: added_and_stored
    tma_commit();
    tma_wait_read<0>();
  }
}

/// A kernel, that others may begin beside: it reads b and writes a.
inline __global__ void kernel_before(gmem<f32> a, gmem<const f32> b) {
  launch_dependents();
  a[threadIdx.x] = b[threadIdx.x];
}

/// The kernel before may still write what this one reads.
template <bool right>
__global__ void not_waited_for_the_grid(gmem<f32> a, gmem<f32> b) {
  const int t = threadIdx.x;
  if (right) grid_dependency_wait();
  const f32 x = a[t];  // bug: not_waited_for_the_grid
  b[t] = x;
}

/// The kernel before may still read what this one writes.
template <bool right>
__global__ void written_too_early(gmem<f32> a, gmem<f32> b) {
  const int t = threadIdx.x;
  if (right) grid_dependency_wait();
  b[t] = 2.f;  // bug: written_too_early
  a[64 + t] = 2.f;
}

/// One warp waits for the kernel before, and the other one cannot know that it has.
template <bool right>
__global__ void waited_for_by_one_warp(gmem<f32> a, gmem<f32> b) {
  const int t = threadIdx.x;
  if (t >= 32) grid_dependency_wait();
  if (right) __syncthreads();
  const f32 x = t < 32 ? f32(a[t]) : f32(0.f);  // bug: waited_for_by_one_warp
  if (t < 32) b[64 + t] = x;
}

}  // namespace flashladder::zoo
