// dQ is added up in integers, multiples of a unit that each row has. Integers add up exactly, so that the
// order in which blocks add does not matter: dQ has the same bits every time.
#include "common/kernel/dq_sum.hpp"
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"
#include "common/ptx/dependent_launch.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/fixed_point.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/wgmma.hpp"

namespace flashladder::stage_64 {
namespace {

/// What a block works on, and what its threads have for it.
template <int d>
struct Tile {
  static constexpr int warpgroups = 2;                    // that multiply
  static constexpr int threads = 128 * (1 + warpgroups);  // with the producer's
  static constexpr int Bc = 64 * warpgroups;              // keys of a tile of K and V, 64 of each warpgroup
  static constexpr int Br = d <= 64 ? 128 : 64;           // rows of a tile of Q and dO
  static constexpr int registers = 240;                   // of a thread that multiplies
  static constexpr int producer_registers = 24;           // of one of the producer
  static constexpr bool early_scores = d > 64;            // S of a tile in the one before
  static constexpr int column_blocks = d / 64;            // of 64 columns of dQ
  static_assert(Br / 64 * column_blocks == warpgroups, "of dQ a warpgroup has 64 rows and 64 columns");
};
constexpr int num_buffers = 2;  // of Q, dO, L2, D and dS
constexpr int of_Q = 0, of_dO = 1;

// Of its 64 keys a warp has 16, as wgmma's fragments are laid out: the four lanes of a quad have keys quad
// and quad + 8, each rows 2 quad_lane and 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 4;

template <int d>
using QTile = Panels<Tile<d>::Br, d>;
template <int d>
using KVTile = Panels<Tile<d>::Bc, d>;
template <int d>
using STile = Panels<Tile<d>::Bc, Tile<d>::Br>;  // dS^T

/// Where the tiles and the mbarriers begin in dynamic shared memory, in bytes, and how many bytes they
/// take.
template <int d>
struct Shared {
  static constexpr int K = 0, V = K + KVTile<d>::bytes, Q = V + KVTile<d>::bytes,
                       dO = Q + num_buffers * QTile<d>::bytes, dS = dO + num_buffers * QTile<d>::bytes,
                       L2 = dS + num_buffers * STile<d>::bytes, D = L2 + 4 * num_buffers * Tile<d>::Br,
                       full = D + 4 * num_buffers * Tile<d>::Br, empty = full + 16 * num_buffers,
                       dS_full = empty + 16 * num_buffers, dS_empty = dS_full + 8 * num_buffers,
                       bytes = dS_empty + 8 * num_buffers;
};

/// to = from, which lets the compiler give the same registers to both.
template <int chunks>
__device__ __forceinline__ void copy_tile(f32 (&to)[chunks][4], const f32 (&from)[chunks][4]) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) to[c][e] = from[c][e];
  }
}

/// P = exp(S - L), as a power of 2.
template <int row_chunks, int Br>
__device__ __forceinline__ void probabilities(f32 (&x)[row_chunks][4],  // S^T, then P^T
                                              smem_tile<f32, num_buffers, Br>& L2, int buffer,
                                              float scale_log2, int quad_lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const float2 l = load2(L2.at(buffer, 8 * c + 2 * quad_lane));
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] = ex2_approx(fmaf(x[c][e], scale_log2, -(e % 2 == 0 ? l.x : l.y)));
  }
}

/// P = 0 where a row does not see a key.
template <bool causal, int row_chunks>
__device__ __forceinline__ void mask_tile(f32 (&p)[row_chunks][4], Sizes n, int i, int j) {
  n.causal = causal;  // known when this is compiled: else each row would branch
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (j + e / 2 * 8 >= n.visible_keys(i + 8 * c + e % 2)) p[c][e] = 0.f;
    }
  }
}

/// dS = P * (dP - D), element by element.
template <int row_chunks, int Br>
__device__ __forceinline__ void multiply(f32 (&x)[row_chunks][4],        // dP^T, then dS^T
                                         const f32 (&p)[row_chunks][4],  // P^T
                                         smem_tile<f32, num_buffers, Br>& D, int buffer, int quad_lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const float2 sum = load2(D.at(buffer, 8 * c + 2 * quad_lane));
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] = p[c][e] * (x[c][e] - (e % 2 == 0 ? sum.x : sum.y));
  }
}

/// P^T or dS^T, rounded: the operand A of the product with dO or Q.
template <class T, int row_chunks>
__device__ __forceinline__ void round_tile(std::uint32_t (&a)[row_chunks / 2][4],
                                           const f32 (&x)[row_chunks][4]) {
#pragma unroll
  for (int c = 0; c < row_chunks / 2; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      a[c][e] = round_pair<T>(x[2 * c + e / 2][e % 2 * 2], x[2 * c + e / 2][e % 2 * 2 + 1]);
  }
}

/// A warp's 16 keys of dS^T, of dV or of dK go to shared memory from key k0 on, in panels from row `to` of
/// the array on: four 8 x 8 matrices at a time, as ldmatrix would read them.
template <class Panels, class T, int chunks, int rows>
__device__ __forceinline__ void store_keys(smem_tile<T, rows, Panels::columns>& tile, int to,
                                           const std::uint32_t (&a)[chunks][4], int k0, int lane) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const int key = k0 + lane % 16, column = 16 * c + lane / 16 * 8;
    stmatrix_x4<T>(tile.at(to + Panels::row(key, column), Panels::column(key, column)), a[c]);
  }
}

/// The largest |x| of many numbers; infinity if one of them is no finite number.
struct Largest {
  f32 most = 0.f;
  f32 zero = 0.f;  // 0 times each of them: NaN, if there is a NaN or an infinity
  __device__ __forceinline__ void take(f32 x) {
    most = fmaxf(most, fabsf(x));
    zero = fmaf(0.f, x, zero);
  }
  /// Of all that the lanes of a warp have taken.
  __device__ __forceinline__ f32 of_warp() const {
    const f32 largest = lanes_max<32>(most);
    return lanes_sum<32>(zero) == 0.f ? largest : f32(INFINITY);
  }
};

constexpr int part = 128;  // keys of which a warp takes the largest numbers

/// The largest |K| of `part` keys each, and their largest sum(|V|): what dQ can be at most follows from
/// them.
template <class T, int d>
__global__ void __launch_bounds__(helpers)
    largest_of_keys(gmem<const T> Kg,    // [batch, kv_heads, Nk, d]
                    gmem<const T> Vg,    // [batch, kv_heads, Nk, d]
                    gmem<f32> largestg,  // [batch, kv_heads, parts, 2]
                    BackwardSizes n, int parts) {
  launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.y, b = blockIdx.z;
  const int number = blockIdx.x * (helpers / 32) + warp;
  if (number >= parts) return;
  constexpr int lanes = d / 8;  // of a row
  // What is past the end is the last key, or column 0, once more: no load waits for a comparison. It
  // changes no largest number, and the sum of V leaves it out.
  const bool past = lane % lanes * 8 >= n.d;
  const int c = past ? 0 : lane % lanes * 8;
  const gmem<const T> K = Kg + (n.K.at(b, h) + c), V = Vg + (n.V.at(b, h) + c);
  Largest most_of_K, most_of_V;
  constexpr int step = 32 / lanes, ahead = 4;  // keys at a time, and how many times are loaded together
  for (int k = lane / lanes; k < part; k += ahead * step) {
    f32 of_K[ahead][8], of_V[ahead][8];
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      const int key = number * part + k + a * step, j = key < n.Nk ? key : n.Nk - 1;
      load_eight<T>(of_K[a], K + j * n.K.row);
      load_eight<T>(of_V[a], V + j * n.V.row);
    }
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      f32 sum = 0.f;
#pragma unroll
      for (int e = 0; e < 8; ++e) most_of_K.take(of_K[a][e]), sum += fabsf(of_V[a][e]);
      most_of_V.take(lanes_sum<lanes>(past ? f32(0.f) : sum));
    }
  }
  const f32 of_K = most_of_K.of_warp(), of_V = most_of_V.of_warp();
  if (lane == 0) {
    const gmem<f32> largest = largestg + ((b * gridDim.y + h) * parts + number) * 2;
    largest[0] = of_K;
    largest[1] = of_V;
  }
}

/// prepare_row for each row, the units of 1 that its dQ has, and dQ_sum = 0.
template <class T, int d>
__global__ void __launch_bounds__(helpers)
    prepare_units(gmem<const T> Og,          // [batch, q_heads, Nq, d]
                  gmem<const T> dOg,         // [batch, q_heads, Nq, d]
                  gmem<const f32> Lg,        // [batch, q_heads, Nq]
                  gmem<const f32> largestg,  // [batch, kv_heads, parts, 2]
                  gmem<f32> Dg,              // [batch, q_heads, padded_Nq]
                  gmem<f32> L2g,             // [batch, q_heads, padded_Nq]
                  gmem<f32> unitsg,          // [batch, q_heads, padded_Nq]
                  gmem<int> dQ_sumg,         // [batch, q_heads, padded_Nq, d]
                  BackwardSizes n, int padded_Nq, int parts) {
  launch_dependents();
  // What came before `largest_of_keys`, which is launched plainly, has ended: nobody reads D, L2 or dQ_sum.
  const int h = in_turn<true>(blockIdx.y, gridDim.y), b = in_turn<true>(blockIdx.z, gridDim.z);
  const int first = blockIdx.x * (helpers / helper_lanes), lane = threadIdx.x % helper_lanes;
  const int i = first + threadIdx.x / helper_lanes;
  f32 dO = 0.f;  // the largest |dO| of the row, and NaN where D or L is no finite number
  const f32 D = prepare_row<T, d>(Og, dOg, Lg, Dg, L2g, n, padded_Nq, b, h, i,
                                  [&](f32 x) { dO = fmaxf(dO, fabsf(x)); });
  dO = lanes_max<helper_lanes>(dO) + 0.f * D;
  if (lane == 0 && i < n.Nq) dO += 0.f * finite(Lg[n.row0(b, h) + i]);
  const gmem<int> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + first) * d;
#pragma unroll
  for (int e = 4 * threadIdx.x; e < helpers / helper_lanes * d; e += 4 * helpers) store4(dQ_sum + e, {});
  f32 K = 0.f, V = 0.f;
  grid_dependency_wait();  // all of `largest` is there when the kernel before has ended
  const gmem<const f32> largest =
      behind_wait(largestg + (b * (n.q_heads / n.group) + n.kv_head(h)) * parts * 2);
  for (int p = threadIdx.x % 32; p < parts; p += 32) {
    K = fmaxf(K, largest[2 * p]);
    V = fmaxf(V, largest[2 * p + 1]);
  }
  // |dQ| / scale = |dS K| is at most rowsum(P) max|dP - D| max|K|, and |dP| at most max|dO| sum(|V|).
  const f32 most = (dO * lanes_max<32>(V) + fabsf(D)) * lanes_max<32>(K);
  // It is a little less than 2^30 units, and an int has 2^31: dS in fp16 may be rounded to twice as much.
  // What is no finite number gives NaN.
  if (lane == 0) unitsg[n.head(b, h) * padded_Nq + i] = 0x1.fp29f / fmaxf(most, 0x1p-96f) + 0.f * most;
}

/// dQ = scale * dQ_sum, in 16 bits and in rows again: a thread for 8 columns of rows quad and quad + 8
/// of 16.
template <class T, int d>
__global__ void __launch_bounds__(helpers)
    convert_units(gmem<const int> dQ_sumg,  // [batch, q_heads, padded_Nq, d]
                  gmem<const f32> unitsg,   // [batch, q_heads, padded_Nq]
                  gmem<T> dQg,              // [batch, q_heads, Nq, d]
                  BackwardSizes n, int padded_Nq) {
  const int h = in_turn<true>(blockIdx.y, gridDim.y), b = in_turn<true>(blockIdx.z, gridDim.z);
  const int e = blockIdx.x * helpers + threadIdx.x;
  const int i0 = e / d * 16, x = e % d / 8, quad = e % 8;
  if (i0 >= n.Nq) return;
  // So many tiles of keys have added to these rows.
  const int live = n.mask().live_tiles(i0 / Tile<d>::Br * Tile<d>::Br, Tile<d>::Br, Tile<d>::Bc).end;
  const int times = live > 0 ? live : 0;
  grid_dependency_wait();  // dQ_sum is complete when the kernel before has ended
  const gmem<const f32> units = behind_wait(unitsg + n.head(b, h) * padded_Nq + i0 + quad);
  const gmem<const int> dQ_sum =
      behind_wait(dQ_sumg + ((n.head(b, h) * padded_Nq + i0) * d + x * 128 + 8 * quad));
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    const f32 unit = n.scale / units[8 * a];
    f32 dq[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int4 sums = sums_of_pairs(load4(dQ_sum + (64 * a + 4 * half)), times);
      dq[4 * half] = unit * sums.x, dq[4 * half + 1] = unit * sums.y;
      dq[4 * half + 2] = unit * sums.z, dq[4 * half + 3] = unit * sums.w;
    }
    const int i = i0 + quad + 8 * a;
    if (i < n.Nq && 8 * x < n.d) store_eight<T>(dQg + (n.dQ.at(b, h) + i * n.dQ.row + 8 * x), dq);
  }
}

template <class T, int d>
__global__ void __launch_bounds__(Tile<d>::threads, 1)
    wgmma_backward(const __grid_constant__ tensor_map Q_map,   // [batch, q_heads, Nq, d]
                   const __grid_constant__ tensor_map K_map,   // [batch, kv_heads, Nk, d]
                   const __grid_constant__ tensor_map V_map,   // [batch, kv_heads, Nk, d]
                   const __grid_constant__ tensor_map dO_map,  // [batch, q_heads, Nq, d]
                   const __grid_constant__ tensor_map L2_map,  // [batch, q_heads, padded_Nq]
                   const __grid_constant__ tensor_map D_map,   // [batch, q_heads, padded_Nq]
                   gmem<const f32> unitsg,                     // [batch, q_heads, padded_Nq]
                   gmem<int> dQ_sumg,  // [batch, q_heads, padded_Nq, d], 16 x 8 numbers after another
                   gmem<T> dKg,        // [batch, kv_heads, Nk, d]
                   gmem<T> dVg,        // [batch, kv_heads, Nk, d]
                   BackwardSizes n, int padded_Nq,
                   int sections) {  // of a batch entry, under the mask; else 1
  constexpr int Br = Tile<d>::Br, Bc = Tile<d>::Bc;
  using Qt = QTile<d>;
  using KVt = KVTile<d>;
  using St = STile<d>;
  using At = Shared<d>;
  auto&& K = dynamic_tile<T, KVt::panels * Bc, KVt::columns, "K">(At::K);
  auto&& V = dynamic_tile<T, KVt::panels * Bc, KVt::columns, "V">(At::V);
  auto&& Q = dynamic_tile<T, num_buffers * Qt::panels * Br, Qt::columns, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, num_buffers * Qt::panels * Br, Qt::columns, "dO">(At::dO);
  auto&& dS = dynamic_tile<T, num_buffers * St::panels * Bc, St::columns, "dS">(At::dS);
  auto&& L2 = dynamic_tile<f32, num_buffers, Br, "L2">(At::L2);
  auto&& D = dynamic_tile<f32, num_buffers, Br, "D">(At::D);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(At::full);     // of Q, and of dO
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(At::empty);  // likewise
  auto&& dS_full = dynamic_tile<mbarrier, num_buffers, 1, "dS_full">(At::dS_full);
  auto&& dS_empty = dynamic_tile<mbarrier, num_buffers, 1, "dS_empty">(At::dS_empty);

  // Without the mask head after head. Under it heads come in sections, whose Q, dO and dQ_sum the L2 cache
  // holds. Of a section the first keys of all heads come first, since the most rows see them.
  const int kv_head = n.causal ? blockIdx.z % sections * gridDim.x + blockIdx.x : blockIdx.y;
  const int j0 = (n.causal ? blockIdx.y : blockIdx.x) * Bc, b = blockIdx.z / sections;

  // The tiles of rows that see key j0, of all query heads of the group one after the other: they add to the
  // same dK and dV.
  const int first = n.causal && j0 + n.Nq > n.Nk ? (j0 + n.Nq - n.Nk) / Br * Br : 0;
  const auto for_each_tile = [&](auto step) {
    int tile = 0;
    for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
      for (int i0 = first; i0 < n.Nq; i0 += Br, ++tile) step(h, i0, tile);
    }
  };
  // Tells TMA to bring Q and L2, or dO and D, of a tile, as soon as their buffer is empty; in the first
  // round it is. With those of the first tile it brings K, or V.
  const auto bring = [&](auto&& tile, const tensor_map& map, auto&& numbers, const tensor_map& numbers_map,
                         auto&& keys, const tensor_map& keys_map, int of, int h, int i0, int number) {
    const int to = number % num_buffers, round = number / num_buffers;
    auto&& bar = full.at(to, of);
    mbarrier_wait(empty.at(to, of), 1 - round % 2);
    mbarrier_arrive_expect_tx(bar, Qt::bytes + 4 * Br + (number == 0 ? KVt::bytes : 0));
    for (int p = 0; number == 0 && p < KVt::panels; ++p)
      tma_load<T>(keys.at(p * Bc, 0), keys_map, bar, p * KVt::columns, j0, kv_head, b);
    for (int p = 0; p < Qt::panels; ++p)
      tma_load<T>(tile.at((to * Qt::panels + p) * Br, 0), map, bar, p * Qt::columns, i0, h, b);
    tma_load<f32>(numbers.at(to, 0), numbers_map, bar, i0, h, b, 0);
  };
  if (threadIdx.x == 0) {
    launch_dependents();  // what converts dQ may take the place of blocks that have ended
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_Q, of_dO}) {
        mbarrier_init(full.at(buffer, of), 1);
        mbarrier_init(empty.at(buffer, of),
                      4 * Tile<d>::warpgroups);  // a warp that multiplies says so once
      }
      mbarrier_init(dS_full.at(buffer, 0), 4 * Tile<d>::warpgroups);
      mbarrier_init(dS_empty.at(buffer, 0), 4 * Tile<d>::warpgroups);
    }
    fence_mbarrier_init();
    if constexpr (Tile<d>::early_scores) {  // the first tile comes while the threads meet
      grid_dependency_wait();               // L2, D and dQ_sum are there when `prepare` has ended
      bring(Q, Q_map, L2, L2_map, K, K_map, of_Q, kv_head * n.group, first, 0);
      bring(dO, dO_map, D, D_map, V, V_map, of_dO, kv_head * n.group, first, 0);
    }
  }
  __syncthreads();  // the mbarriers must be initialised

  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<Tile<d>::producer_registers>();
    if (threadIdx.x > 0) return;
    if constexpr (!Tile<d>::early_scores) grid_dependency_wait();
    for_each_tile([&](int h, int i0, int tile) {
      if (Tile<d>::early_scores && tile == 0) return;  // it is on its way
      bring(Q, Q_map, L2, L2_map, K, K_map, of_Q, h, i0, tile);
      bring(dO, dO_map, D, D_map, V, V_map, of_dO, h, i0, tile);
    });
    return;
  }

  registers_up<Tile<d>::registers>();
  const int warp = uniform(threadIdx.x / 32 - 4), warpgroup = warp / 4, lane = threadIdx.x % 32,
            quad = lane / row_lanes, quad_lane = lane % row_lanes;
  const int k0 = 16 * warp;  // its keys of a tile: k0 + quad and k0 + quad + 8
  // Its part of dQ of a tile: 64 rows and 64 columns, of which each warp has 16 rows.
  const int part_row = warpgroup / Tile<d>::column_blocks * 64,
            part_column = warpgroup % Tile<d>::column_blocks * 64;
  const float scale_log2 = n.scale * log2_e;
  // What the tensor cores read. As A: the warpgroup's keys of K and V, and its rows of dS.
  const auto K_keys = k_major<KVt::row_bytes, T>(K.at(warpgroup * 64, 0));
  const auto V_keys = k_major<KVt::row_bytes, T>(V.at(warpgroup * 64, 0));
  const auto dS_part = mn_major<St::row_bytes, T>(dS.at(part_row / 64 * Bc, 0), St::panel_bytes);
  // As B: Q and dO of the first buffer, for products over columns and over rows; its columns of K.
  const auto Q_first = k_major<Qt::row_bytes, T>(Q), dO_first = k_major<Qt::row_bytes, T>(dO);
  const auto Q_rows = mn_major<Qt::row_bytes, T>(Q, Qt::panel_bytes),
             dO_rows = mn_major<Qt::row_bytes, T>(dO, Qt::panel_bytes);
  const auto K_part = mn_major<KVt::row_bytes, T>(K.at(part_column / 64 * Bc, 0), KVt::panel_bytes);

  f32 dV[d / 8][4] = {}, dK[d / 8][4] = {};  // of its keys, as wgmma has them
  // This warp has read Q and L2, or dO and D.
  const auto release = [&](int of, int buffer) {
    if (lane == 0) mbarrier_arrive(empty.at(buffer, of));
  };
  // This warp's first row of dQ, of all heads, of the tile whose dQ comes next. (dQ_sum of 2^31 rows would
  // have 512 GiB, and 64 bits would take registers that are not there.)
  int row0 = 0;
  // dQ = dS K of a tile, of this warpgroup's rows and columns and all keys, begins.
  const auto begin_dQ = [&](f32(&dQ)[8][4], int tile) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    mbarrier_wait(dS_full.at(buffer, 0), parity);  // dS is read: all warps must have written theirs
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Bc; k += 16)
      wgmma<T>(dQ, dS_part + buffer * St::bytes + St::at_row(k), K_part + KVt::at_row(k), k > 0);
    wgmma_commit();
  };
  // The units of rows quad and quad + 8 of that tile come.
  const auto load_units = [&](f32(&units)[2]) {
    const gmem<const f32> of_row = behind_wait(unitsg + (row0 + quad));
    units[0] = of_row[0], units[1] = of_row[8];
  };
  // It is there: this warp has read dS, and adds its part of dQ to what other blocks have added.
  const auto add_dQ = [&](const f32(&dQ)[8][4], const f32(&units)[2], int tile) {
    if (lane == 0) mbarrier_arrive(dS_empty.at(tile % num_buffers, 0));
    // With the lane in it: the other parts of an address are known when this is compiled.
    const gmem<int> dQ_sum = dQ_sumg + std::int64_t{row0} * d + (part_column * 16 + 2 * lane);
#pragma unroll
    for (int x = 0; x < 8; ++x) {
#pragma unroll
      for (int a = 0; a < 2; ++a)
        atomic_add2(dQ_sum + (128 * x + 64 * a), excess_integer(dQ[x][2 * a], units[a]),
                    nearest_integer(dQ[x][2 * a + 1] * units[a]));
    }
  };
  // S^T = K Q^T of a tile begins.
  const auto begin_S = [&](f32(&S)[Br / 8][4], int tile) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    mbarrier_wait(full.at(buffer, of_Q), parity);
    wgmma_fence();  // what the threads have done with the registers is done
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(S, K_keys + KVt::at_column(k), Q_first + buffer * Qt::bytes + Qt::at_column(k), k > 0);
    wgmma_commit();
  };
  const int num_tiles = n.group * ((n.Nq - first + Br - 1) / Br);  // at least one
  f32 next_S[Br / 8][4];                                           // S^T of the tile that comes next
  if constexpr (Tile<d>::early_scores) {
    begin_S(next_S, 0);
    wgmma_wait<0>(next_S);
  }
  for_each_tile([&](int h, int i0, int tile) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    const int now = buffer * Qt::bytes;                // where this tile's Q and dO lie
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S^T = K Q^T, which may be there already, and dP^T = V dO^T begin
    f32 P[Br / 8][4], dP[Br / 8][4];  // S^T, then P^T; dP^T, then dS^T
    if constexpr (Tile<d>::early_scores)
      copy_tile(P, next_S);
    else
      begin_S(P, tile);
    mbarrier_wait(full.at(buffer, of_dO), parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(dP, V_keys + KVt::at_column(k), dO_first + now + Qt::at_column(k), k > 0);
    wgmma_commit();
    // P = exp(S - L), while dP^T is under way
    if constexpr (!Tile<d>::early_scores) wgmma_wait<1>(P);
    probabilities(P, L2, buffer, scale_log2, quad_lane);
    if (masked && n.causal) mask_tile<true>(P, n, i0 + 2 * quad_lane, j0 + k0 + quad);
    if (masked && !n.causal) mask_tile<false>(P, n, i0 + 2 * quad_lane, j0 + k0 + quad);
    probe_transposed("P", n.head(b, h), i0, j0 + k0, P, lane);
    std::uint32_t P_rounded[Br / 16][4], dS_rounded[Br / 16][4];
    round_tile<T>(P_rounded, P);

    // dV += P^T dO begins. dS = P * (dP - D), while it is under way
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Br; k += 16) wgmma<T>(dV, P_rounded[k / 16], dO_rows + now + Qt::at_row(k));
    wgmma_commit();
    wgmma_wait<1>(dP);
    multiply(dP, P, D, buffer, quad_lane);
    round_tile<T>(dS_rounded, dP);
    // this buffer of dS changes: all warps must have waited for the products that read it
    mbarrier_wait(dS_empty.at(buffer, 0), 1 - parity);
    store_keys<St, T>(dS, buffer * St::panels * Bc, dS_rounded, k0, lane);
    fence_proxy_async();  // what this thread has written is for the tensor cores
    __syncwarp();         // dS is given: all lanes must have written theirs
    if (lane == 0) mbarrier_arrive(dS_full.at(buffer, 0));
    f32 units[2];
    load_units(units);  // of the tile before; for the first one in vain: a branch would take registers
    wgmma_wait<0>(dV);
    release(of_dO, buffer);

    // dQ of the tile before and dK += dS^T Q of this one begin
    f32 dQ[8][4];
    const auto begin_dK = [&] {
#pragma unroll
      for (int k = 0; k < Br; k += 16) wgmma<T>(dK, dS_rounded[k / 16], Q_rows + now + Qt::at_row(k));
      wgmma_commit();
    };
    if (tile > 0) {
      begin_dQ(dQ, tile - 1);
      begin_dK();
      wgmma_wait<1>(dQ);
      add_dQ(dQ, units, tile - 1);  // while dK is under way
      if constexpr (!Tile<d>::early_scores) wgmma_wait<0>(dK);
    } else {
      wgmma_fence();
      begin_dK();
      if constexpr (!Tile<d>::early_scores) wgmma_wait<0>(dK);
    }
    row0 = static_cast<int>(n.head(b, h)) * padded_Nq + i0 + part_row + warp % 4 * 16;
    const bool last = h == (kv_head + 1) * n.group - 1 && i0 + Br >= n.Nq;
    if (Tile<d>::early_scores && !last) {  // S^T of the next tile, while dK is under way
      f32 S[Br / 8][4];
      begin_S(S, tile + 1);
      wgmma_wait<1>(dK);
      release(of_Q, buffer);
      wgmma_wait<0>(S);  // ptxas serialises products that are under way when a loop begins again
      copy_tile(next_S, S);
    } else {
      if constexpr (Tile<d>::early_scores) wgmma_wait<0>(dK);
      release(of_Q, buffer);
      // S is used no more: else the compiler would keep the old one beside the new one
      if constexpr (Tile<d>::early_scores) copy_tile<Br / 8>(next_S, {});
    }
  });
  f32 dQ[8][4], units[2];  // of the last tile
  begin_dQ(dQ, num_tiles - 1);
  load_units(units);
  wgmma_wait<0>(dQ);
  add_dQ(dQ, units, num_tiles - 1);

  // dK goes to the place of this warp's keys of K, dV to that of V, and from there to memory 16 bytes a
  // lane, whole rows at a time.
  // K and V change: all warps must have waited for the products that read them
  named_barrier_sync(1, 128 * Tile<d>::warpgroups);
#pragma unroll
  for (int x = 0; x < d / 8; ++x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dK[x][e] *= n.scale;  // dS had no scale
  }
  std::uint32_t rounded[d / 16][4];
  round_tile<T>(rounded, dK);
  store_keys<KVt, T>(K, 0, rounded, k0, lane);
  round_tile<T>(rounded, dV);
  store_keys<KVt, T>(V, 0, rounded, k0, lane);
  __syncwarp();  // each row is read by lanes that have not written it: all must have
  const gmem<T> dKh = dKg + n.dK.at(b, kv_head), dVh = dVg + n.dV.at(b, kv_head);
  constexpr int chunks = KVt::columns / 8;  // of a row of a panel: neighbouring lanes stay in one panel
#pragma unroll 4
  for (int e = lane; e < 16 * (d / 8); e += 32) {
    const int key = k0 + e / chunks % 16, j = j0 + key;
    const int c = e / (16 * chunks) * KVt::columns + e % chunks * 8;
    const bool there = j < n.Nk && c < n.d;
    store_16B<T>(dKh + (j * n.dK.row + c), K.at(KVt::row(key, c), KVt::column(key, c)), there);
    store_16B<T>(dVh + (j * n.dV.row + c), V.at(KVt::row(key, c), KVt::column(key, c)), there);
  }
}

/// How many key/value heads come together under the mask: the most that divide all, and of which Q, dO and
/// dQ_sum take at most three quarters of L2, or one.
unsigned heads_of_section(const Problem& p, int d) {
  const std::int64_t bytes = 8 * (p.q_heads / p.kv_heads) * p.Nq * d;  // of one
  std::int64_t heads = p.kv_heads;
  while (heads > 1 && (p.kv_heads % heads != 0 || 4 * heads * bytes > 3 * L2_bytes())) --heads;
  return static_cast<unsigned>(heads);
}

void backward(const Backward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const BackwardBuffers<T> x(f);
    for_head_dim<T, 64, 128>(f.problem.d, [&](auto d) {
      constexpr int Br = Tile<d>::Br, Bc = Tile<d>::Bc;
      const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch, Tc = tiles(f.problem.Nk, Bc);
      const int padded_Nq = Br * static_cast<int>(tiles(f.problem.Nq, Br));  // of whole tiles
      const int parts = static_cast<int>(tiles(f.problem.Nk, part));
      ExtraBuffer D(f, "D", heads * batch * std::int64_t{padded_Nq}), L2(f, "L2", D.elements()),
          units(f, "units", D.elements()),
          largest(f, "largest", 2 * kv_heads * batch * std::int64_t{parts});
      ExtraBuffer<int> dQ_sum(f, "dQ_sum", D.elements() * d);
      launch("largest_of_keys", largest_of_keys<T, d>, dim3(tiles(parts, helpers / 32), kv_heads, batch),
             helpers, 0, x.K, x.V, largest, x.sizes, parts);
      launch_dependent("prepare", prepare_units<T, d>,
                       dim3(tiles(padded_Nq, helpers / helper_lanes), heads, batch), helpers, 0, x.O, x.dO,
                       x.L, largest, D, L2, units, dQ_sum, x.sizes, padded_Nq, parts);
      const unsigned section = f.problem.causal ? heads_of_section(f.problem, d) : kv_heads,
                     sections = kv_heads / section;
      launch_dependent("wgmma_backward", wgmma_backward<T, d>,
                       f.problem.causal ? dim3(section, Tc, batch * sections) : dim3(Tc, kv_heads, batch),
                       Tile<d>::threads, Shared<d>::bytes, map_of<QTile<d>>(f, "Q", x.Q),
                       map_of<KVTile<d>>(f, "K", x.K), map_of<KVTile<d>>(f, "V", x.V),
                       map_of<QTile<d>>(f, "dO", x.dO), map_of_rows("L2", L2, batch, heads, padded_Nq, Br),
                       map_of_rows("D", D, batch, heads, padded_Nq, Br), units, dQ_sum, x.dK, x.dV, x.sizes,
                       padded_Nq, static_cast<int>(sections));
      launch_dependent("convert", convert_units<T, d>,
                       dim3(tiles(tiles(f.problem.Nq, 16) * std::int64_t{d}, helpers), heads, batch),
                       helpers, 0, dQ_sum, units, x.dQ, x.sizes, padded_Nq);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 64,
    .name = "deterministic_fixed_point",
    .title = "dQ in fixed point",
    .idea = "blocks add to dQ in integers, whose sums are exact: in any order they give the same bits",
    .claim = "products of a deterministic pass: 7 -> 5 (stage 57 -> 64)",
    .before = 63,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8_up_to<128>},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .backward = backward,
};

}  // namespace flashladder::stage_64
