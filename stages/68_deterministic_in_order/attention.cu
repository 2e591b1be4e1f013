// In order: one block has all keys of a head, and takes them one tile after the other. No other block adds
// to dQ of that head, so that it has the same bits every time.
#include "common/kernel/dq_sum.hpp"
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/cache_policy.hpp"
#include "common/ptx/dependent_launch.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/wgmma.hpp"

namespace flashladder::stage_68 {
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
  static constexpr int column_blocks = d / 64;            // of 64 columns of dQ
  static_assert(Br / 64 * column_blocks == warpgroups, "of dQ a warpgroup has 64 rows and 64 columns");
};
constexpr int num_buffers = 2;  // of Q, dO, L2, D and dS, and of K and V
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
  static constexpr int K = 0, V = K + num_buffers * KVTile<d>::bytes,
                       Q = V + num_buffers * KVTile<d>::bytes, dO = Q + num_buffers * QTile<d>::bytes,
                       dS = dO + num_buffers * QTile<d>::bytes, L2 = dS + num_buffers * STile<d>::bytes,
                       D = L2 + 4 * num_buffers * Tile<d>::Br, full = D + 4 * num_buffers * Tile<d>::Br,
                       empty = full + 16 * num_buffers, dS_full = empty + 16 * num_buffers,
                       dS_empty = dS_full + 8 * num_buffers, KV_empty = dS_empty + 8 * num_buffers,
                       key_tile = KV_empty + 8 * num_buffers, bytes = key_tile + 16 * num_buffers;
};

/// The first row that sees key j, or 0.
template <class Sizes>
__host__ __device__ __forceinline__ auto first_row(decltype(Sizes::Nq) j, const Sizes& n) {
  return n.causal && j + n.Nq > n.Nk ? j + n.Nq - n.Nk : 0;
}

/// A tile of keys of one head.
struct KeyTile {
  int j0;       ///< Its first key; `none` where no tile is left.
  int kv_head;  ///< Key/value head, of its batch entry.
  int b;        ///< Batch entry.
};
constexpr int none = -1;

/// In which order blocks take the key/value heads.
struct Order {
  int kv_heads;  ///< Of a batch entry.
  int all;       ///< Of all batch entries.

  /// The first keys of head `number` of all.
  __device__ __forceinline__ KeyTile at(int number) const {
    if (number >= all) return {none, 0, 0};
    return {0, number % kv_heads, number / kv_heads};
  }
};

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

/// A warp's 16 keys of dS^T go to shared memory from key k0 on, in panels from row `to` of the array on:
/// four 8 x 8 matrices at a time, as ldmatrix would read them.
template <class Panels, class T, int chunks, int rows>
__device__ __forceinline__ void store_keys(smem_tile<T, rows, Panels::columns>& tile, int to,
                                           const std::uint32_t (&a)[chunks][4], int k0, int lane) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const int key = k0 + lane % 16, column = 16 * c + lane / 16 * 8;
    stmatrix_x4<T>(tile.at(to + Panels::row(key, column), Panels::column(key, column)), a[c]);
  }
}

/// prepare_row for each row, and dQ_sum = 0 for the tiles of rows that see no key: to those no block
/// writes.
template <class T, int d>
__global__ void __launch_bounds__(helpers)
    prepare_in_order(gmem<const T> Og,    // [batch, q_heads, Nq, d]
                     gmem<const T> dOg,   // [batch, q_heads, Nq, d]
                     gmem<const f32> Lg,  // [batch, q_heads, Nq]
                     gmem<f32> Dg,        // [batch, q_heads, padded_Nq]
                     gmem<f32> L2g,       // [batch, q_heads, padded_Nq]
                     gmem<f32> dQ_sumg,   // [batch, q_heads, padded_Nq, d]
                     BackwardSizes n, int padded_Nq) {
  launch_dependents();
  const int h = in_turn<true>(blockIdx.y, gridDim.y), b = in_turn<true>(blockIdx.z, gridDim.z);
  const int first = blockIdx.x * (helpers / helper_lanes);
  prepare_row<T, d>(Og, dOg, Lg, Dg, L2g, n, padded_Nq, b, h, first + threadIdx.x / helper_lanes);
  if (first >= first_row(0, n) / Tile<d>::Br * Tile<d>::Br) return;
  const gmem<f32> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + first) * d;
#pragma unroll
  for (int e = 4 * threadIdx.x; e < helpers / helper_lanes * d; e += 4 * helpers)
    store4(dQ_sum + e, make_float4(0.f, 0.f, 0.f, 0.f));
}

template <class T, int d>
__global__ void __launch_bounds__(Tile<d>::threads, 1)
    wgmma_backward(const __grid_constant__ tensor_map Q_map,   // [batch, q_heads, Nq, d]
                   const __grid_constant__ tensor_map K_map,   // [batch, kv_heads, Nk, d]
                   const __grid_constant__ tensor_map V_map,   // [batch, kv_heads, Nk, d]
                   const __grid_constant__ tensor_map dO_map,  // [batch, q_heads, Nq, d]
                   const __grid_constant__ tensor_map L2_map,  // [batch, q_heads, padded_Nq]
                   const __grid_constant__ tensor_map D_map,   // [batch, q_heads, padded_Nq]
                   gmem<f32> dQ_sumg,  // [batch, q_heads, padded_Nq, d], 16 x 8 numbers after another
                   gmem<T> dKg,        // [batch, kv_heads, Nk, d]
                   gmem<T> dVg,        // [batch, kv_heads, Nk, d]
                   gmem<int> drawn,    // [1]: heads that blocks have drawn
                   BackwardSizes n, int padded_Nq, Order order,
                   float scale_log2) {  // scale * log2(e)
  constexpr int Br = Tile<d>::Br, Bc = Tile<d>::Bc;
  using Qt = QTile<d>;
  using KVt = KVTile<d>;
  using St = STile<d>;
  using At = Shared<d>;
  auto&& K = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "K">(At::K);
  auto&& V = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "V">(At::V);
  auto&& Q = dynamic_tile<T, num_buffers * Qt::panels * Br, Qt::columns, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, num_buffers * Qt::panels * Br, Qt::columns, "dO">(At::dO);
  auto&& dS = dynamic_tile<T, num_buffers * St::panels * Bc, St::columns, "dS">(At::dS);
  auto&& L2 = dynamic_tile<f32, num_buffers, Br, "L2">(At::L2);
  auto&& D = dynamic_tile<f32, num_buffers, Br, "D">(At::D);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(At::full);     // of Q, and of dO
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(At::empty);  // likewise
  auto&& dS_full = dynamic_tile<mbarrier, num_buffers, 1, "dS_full">(At::dS_full);
  auto&& dS_empty = dynamic_tile<mbarrier, num_buffers, 1, "dS_empty">(At::dS_empty);
  auto&& KV_empty = dynamic_tile<mbarrier, num_buffers, 1, "KV_empty">(At::KV_empty);  // and key_tile
  auto&& key_tile = dynamic_tile<int, num_buffers, 4, "key_tile">(At::key_tile);  // whose K and V these are

  // The tiles of rows that see the first of some keys, of all query heads of the group one after the other:
  // they add to the same dK and dV. `tile` counts the tiles of rows of all keys that the block takes. `end`
  // is asked for the head behind the last one each time: the others have no register for it.
  int tile = 0;
  const auto for_each_tile = [&](const KeyTile& keys, auto end, auto step) {
    bool begins = true;
    for (int h = keys.kv_head * n.group; h < end(); ++h) {
#pragma unroll 1  // the producer has no registers for several tiles at a time
      for (int i0 = first_row(keys.j0, n) / Br * Br; i0 < n.Nq; i0 += Br, ++tile, begins = false)
        step(h, i0, begins);
    }
  };
  // Tells TMA to bring Q and L2, or dO and D, of a tile, as soon as their buffer is empty; in the first
  // round it is. With those of the first tile of new keys it brings K, or V.
  const auto bring = [&](auto&& rows, const tensor_map& map, auto&& numbers, const tensor_map& numbers_map,
                         auto&& KV, const tensor_map& KV_map, int of, const KeyTile& keys, int KV_buffer,
                         bool begins, int h, int i0) {
    const int to = tile % num_buffers, round = tile / num_buffers;
    auto&& bar = full.at(to, of);
    const cache_policy policy = evict_first();  // L2 is to keep dQ_sum
    mbarrier_wait(empty.at(to, of), 1 - round % 2);
    mbarrier_arrive_expect_tx(bar, Qt::bytes + 4 * Br + (begins ? KVt::bytes : 0));
#pragma unroll
    for (int p = 0; begins && p < KVt::panels; ++p)
      tma_load<T>(KV.at((KV_buffer * KVt::panels + p) * Bc, 0), KV_map, bar, p * KVt::columns, keys.j0,
                  keys.kv_head, keys.b, policy);
#pragma unroll
    for (int p = 0; p < Qt::panels; ++p)
      tma_load<T>(rows.at((to * Qt::panels + p) * Br, 0), map, bar, p * Qt::columns, i0, h, keys.b, policy);
    tma_load<f32>(numbers.at(to, 0), numbers_map, bar, i0, h, keys.b, 0);
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
      mbarrier_init(KV_empty.at(buffer, 0), 4 * Tile<d>::warpgroups);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers must be initialised

  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<Tile<d>::producer_registers>();
    if (threadIdx.x > 0) return;
    grid_dependency_wait();  // L2, D and dQ_sum are there when `prepare` has ended
    int turn = 0;            // tiles of keys that this block has taken
    // Tells the others which keys are next. Their place is empty when dQ of its last rows is there; in the
    // first round it is.
    const auto announce = [&](const KeyTile& keys) {
      const int to = turn % num_buffers;
      mbarrier_wait(KV_empty.at(to, 0), 1 - turn / num_buffers % 2);
      key_tile(to, 0) = keys.j0;
      key_tile(to, 1) = keys.kv_head;
      key_tile(to, 2) = keys.b;
    };
    KeyTile keys = order.at(blockIdx.x);
    for (; keys.j0 != none; ++turn) {
      announce(keys);
      for_each_tile(
          keys, [&] { return (keys.kv_head + 1) * n.group; },
          [&](int h, int i0, bool begins) {
            bring(Q, Q_map, L2, L2_map, K, K_map, of_Q, keys, turn % num_buffers, begins, h, i0);
            bring(dO, dO_map, D, D_map, V, V_map, of_dO, keys, turn % num_buffers, begins, h, i0);
          });
      keys.j0 += Bc;
      if (keys.j0 < n.Nk) continue;
      // Not earlier: the block that is ahead should draw first. Where each has one head, there is none to
      // draw.
      const int next = static_cast<int>(gridDim.x) < order.all ? draw(drawn) : 0;
      keys = order.at(gridDim.x + next);
    }
    announce(keys);
    mbarrier_wait(empty.at(tile % num_buffers, of_Q), 1 - tile / num_buffers % 2);
    mbarrier_arrive(full.at(tile % num_buffers, of_Q));  // no Q comes any more
    return;
  }

  registers_up<Tile<d>::registers>();
  const int warp = uniform(threadIdx.x / 32 - 4), warpgroup = warp / 4, lane = threadIdx.x % 32,
            quad = lane / row_lanes, quad_lane = lane % row_lanes;
  const int k0 = 16 * warp;  // its keys of a tile: k0 + quad and k0 + quad + 8
  // Its part of dQ of a tile: 64 rows and 64 columns, of which each warp has 16 rows.
  const int part_row = warpgroup / Tile<d>::column_blocks * 64,
            part_column = warpgroup % Tile<d>::column_blocks * 64;
  // What the tensor cores read, of the first buffer. As A: the warpgroup's keys of K and V, and its rows of
  // dS.
  const auto K_keys = k_major<KVt::row_bytes, T>(K.at(warpgroup * 64, 0));
  const auto V_keys = k_major<KVt::row_bytes, T>(V.at(warpgroup * 64, 0));
  const auto dS_part = mn_major<St::row_bytes, T>(dS.at(part_row / 64 * Bc, 0), St::panel_bytes);
  // As B: Q and dO, for products over columns and over rows; its columns of K.
  const auto Q_first = k_major<Qt::row_bytes, T>(Q), dO_first = k_major<Qt::row_bytes, T>(dO);
  const auto Q_rows = mn_major<Qt::row_bytes, T>(Q, Qt::panel_bytes),
             dO_rows = mn_major<Qt::row_bytes, T>(dO, Qt::panel_bytes);
  const auto K_part = mn_major<KVt::row_bytes, T>(K.at(part_column / 64 * Bc, 0), KVt::panel_bytes);

  f32 dV[d / 8][4] = {}, dK[d / 8][4] = {};  // of its keys, as wgmma has them
  // This warp has read Q and L2, or dO and D.
  const auto release = [&](int of, int buffer) {
    if (lane == 0) mbarrier_arrive(empty.at(buffer, of));
  };
  // dQ = dS K of a tile, of this warpgroup's rows and columns and all keys, begins.
  const auto begin_dQ = [&](f32(&dQ)[8][4], int tile, int K_at) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    mbarrier_wait(dS_full.at(buffer, 0), parity);  // dS is read: all warps must have written theirs
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Bc; k += 16)
      wgmma<T>(dQ, dS_part + buffer * St::bytes + St::at_row(k), K_part + K_at + KVt::at_row(k), k > 0);
    wgmma_commit();
  };
  // It is there: this warp has read dS, and adds its part of dQ to what it has added for the keys before.
  // For the first keys it stores it.
  gmem<f32> dQ_sum = dQ_sumg;
  int j0_before = 0;  // first key of the tile whose dQ comes next
  const auto add_dQ = [&](const f32(&dQ)[8][4], int tile) {
    if (lane == 0) mbarrier_arrive(dS_empty.at(tile % num_buffers, 0));
    const auto with = [&](auto put) {
#pragma unroll
      for (int x = 0; x < 8; ++x)
        put(dQ_sum + (128 * x + 4 * lane), make_float4(dQ[x][0], dQ[x][1], dQ[x][2], dQ[x][3]));
    };
    if (j0_before == 0)
      with([](gmem<f32> to, float4 x) { store4(to, x, evict_last()); });
    else
      with([](gmem<f32> to, float4 x) { atomic_add4(to, x, evict_last()); });
  };
  // S^T = K Q^T of a tile begins.
  const auto begin_S = [&](f32(&S)[Br / 8][4], int tile, int K_at) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    mbarrier_wait(full.at(buffer, of_Q), parity);
    wgmma_fence();  // what the threads have done with the registers is done
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(S, K_keys + K_at + KVt::at_column(k), Q_first + buffer * Qt::bytes + Qt::at_column(k),
               k > 0);
    wgmma_commit();
  };
  // To which tile of keys K and V of a buffer belong. It is announced before the first Q of that tile
  // comes.
  const auto keys_of = [&](int buffer) {
    return KeyTile{key_tile(buffer, 0), key_tile(buffer, 1), key_tile(buffer, 2)};
  };
  int K_before = 0;  // where K of the tile before lies
  const auto step = [&](const KeyTile& keys, int KV_buffer, int h, int i0) {
    const int j0 = keys.j0, KV_at = KV_buffer * KVt::bytes;  // where K and V lie
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    const int now = buffer * Qt::bytes;                // where this tile's Q and dO lie
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S^T = K Q^T and dP^T = V dO^T begin
    f32 P[Br / 8][4], dP[Br / 8][4];  // S^T, then P^T; dP^T, then dS^T
    begin_S(P, tile, KV_at);
    mbarrier_wait(full.at(buffer, of_dO), parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(dP, V_keys + KV_at + KVt::at_column(k), dO_first + now + Qt::at_column(k), k > 0);
    wgmma_commit();
    // P = exp(S - L), while dP^T is under way
    wgmma_wait<1>(P);
    probabilities(P, L2, buffer, scale_log2, quad_lane);
    if (masked && n.causal) mask_tile<true>(P, n, i0 + 2 * quad_lane, j0 + k0 + quad);
    if (masked && !n.causal) mask_tile<false>(P, n, i0 + 2 * quad_lane, j0 + k0 + quad);
    probe_transposed("P", n.head(keys.b, h), i0, j0 + k0, P, lane);
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
      begin_dQ(dQ, tile - 1, K_before);
      begin_dK();
      wgmma_wait<1>(dQ);
      if (K_before != KV_at && lane == 0)
        mbarrier_arrive(KV_empty.at(1 - KV_buffer, 0));  // of the keys before
      add_dQ(dQ, tile - 1);                              // while dK is under way
    } else {
      wgmma_fence();
      begin_dK();
    }
    const int head = keys.b * n.q_heads + h;  // of all; n.head would take registers that are not there
    dQ_sum =
        dQ_sumg + (std::int64_t{head} * padded_Nq + i0 + part_row + warp % 4 * 16) * d + part_column * 16;
    K_before = KV_at;
    j0_before = j0;
    wgmma_wait<0>(dK);
    release(of_Q, buffer);
  };
  // dK and dV of a tile of keys go to memory. A quad exchanges what it has of a key, so that each lane
  // stores 16 bytes.
  const auto store = [&](const KeyTile& keys) {
    const cache_policy policy = evict_first();  // L2 is to keep dQ_sum
    const gmem<T> dKh = dKg + n.dK.at(keys.b, keys.kv_head), dVh = dVg + n.dV.at(keys.b, keys.kv_head);
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int j = keys.j0 + k0 + quad + 8 * a;
#pragma unroll
      for (int x = 0; x < d / 8; x += 4) {
        std::uint32_t row_dK[4], row_dV[4];  // of 32 columns
#pragma unroll
        for (int y = 0; y < 4; ++y) {
          f32(&dk)[4] = dK[x + y], (&dv)[4] = dV[x + y];
          row_dK[y] = round_pair<T>(dk[2 * a] * n.scale, dk[2 * a + 1] * n.scale);  // dS had no scale
          row_dV[y] = round_pair<T>(dv[2 * a], dv[2 * a + 1]);
          dk[2 * a] = dk[2 * a + 1] = dv[2 * a] = dv[2 * a + 1] = 0.f;  // for the next keys
        }
        transpose_quad(row_dK);
        transpose_quad(row_dV);
        const int c = 8 * (x + quad_lane);
        const bool there = j < n.Nk && c < n.d;
        store_16B<T>(dKh + (j * n.dK.row + c), row_dK, there, policy);
        store_16B<T>(dVh + (j * n.dV.row + c), row_dV, there, policy);
      }
    }
  };
  for (int buffer = 0;; buffer = 1 - buffer) {
    mbarrier_wait(full.at(tile % num_buffers, of_Q), tile / num_buffers % 2);  // they are announced
    const KeyTile keys = keys_of(buffer);
    if (keys.j0 == none) break;
    for_each_tile(
        keys, [&] { return (key_tile(buffer, 1) + 1) * n.group; },
        [&](int h, int i0, bool) { step(keys, buffer, h, i0); });
    store(keys_of(buffer));  // read again: else they would be kept in registers through all rows
  }
  f32 dQ[8][4];  // of the last tile
  begin_dQ(dQ, tile - 1, K_before);
  wgmma_wait<0>(dQ);
  add_dQ(dQ, tile - 1);
}

/// Whether one block is to have all keys of a head: where dQ_sum of all heads that are under way takes at
/// most three quarters of L2, and seven of eight multiprocessors have one.
bool in_order(const Problem& p) {
  const std::int64_t heads = p.batch * p.kv_heads,
                     blocks = std::min<std::int64_t>(multiprocessors(), heads);
  const std::int64_t rows = p.q_heads / p.kv_heads * p.Nq, bytes = 4 * rows * (p.d <= 64 ? 64 : 128);
  const std::int64_t turns = (heads + multiprocessors() - 1) / multiprocessors();
  return 4 * blocks * bytes <= 3 * L2_bytes() && 8 * heads >= 7 * turns * multiprocessors();
}

/// The stage for all else.
const Stage& before() {
  static const Stage& stage = on_backend(find_stage(67), kernel_backend);
  return stage;
}

void backward(const Backward& f) {
  if (!in_order(f.problem)) return before().backward(f);
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const BackwardBuffers<T> x(f);
    for_head_dim<T, 64, 128>(f.problem.d, [&](auto d) {
      constexpr int Br = Tile<d>::Br;
      const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch;
      const int padded_Nq = Br * static_cast<int>(tiles(f.problem.Nq, Br));  // of whole tiles
      ExtraBuffer D(f, "D", heads * batch * std::int64_t{padded_Nq}), L2(f, "L2", D.elements()),
          dQ_sum(f, "dQ_sum", D.elements() * d);
      const Order order{static_cast<int>(kv_heads), static_cast<int>(kv_heads * batch)};
      const int blocks = std::min(multiprocessors(), order.all);
      ExtraBuffer<int> drawn(f, "drawn", 1);
      if (blocks < order.all) drawn.fill_zero();
      launch("prepare", prepare_in_order<T, d>,
             dim3(tiles(padded_Nq, helpers / helper_lanes), heads, batch), helpers, 0, x.O, x.dO, x.L, D,
             L2, dQ_sum, x.sizes, padded_Nq);
      launch_dependent("wgmma_backward", wgmma_backward<T, d>, blocks, Tile<d>::threads, Shared<d>::bytes,
                       map_of<QTile<d>>(f, "Q", x.Q), map_of<KVTile<d>>(f, "K", x.K),
                       map_of<KVTile<d>>(f, "V", x.V), map_of<QTile<d>>(f, "dO", x.dO),
                       map_of_rows("L2", L2, batch, heads, padded_Nq, Br),
                       map_of_rows("D", D, batch, heads, padded_Nq, Br), dQ_sum, x.dK, x.dV, drawn, x.sizes,
                       padded_Nq, order, x.sizes.scale * log2_e);
      launch_dependent("convert", convert_in_turn<T, d, true>,
                       dim3(tiles(tiles(f.problem.Nq, 16) * std::int64_t{d}, helpers), heads, batch),
                       helpers, 0, dQ_sum, x.dQ, x.sizes, padded_Nq);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 68,
    .name = "deterministic_in_order",
    .title = "dQ in order",
    .idea =
        "a block has all keys of a head, one tile after the other: no other one adds to its dQ, which has "
        "the same bits every time",
    .claim =
        "where L2 holds dQ of the heads under way: dQ_sum is not set to 0, and additions of dQ that meet "
        "in another order: BH sum(live_i) Br D -> 0",
    .before = 67,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8_up_to<128>},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .backward = backward,
};

}  // namespace flashladder::stage_68
