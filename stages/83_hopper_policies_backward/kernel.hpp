#pragma once
// The kernel of stage 83; attention.cu beside it explains its idea. Run-time compilation includes this file
// too, so it takes no header of the host.
#include "common/kernel/device.hpp"
#include "common/kernel/panels.hpp"
#include "common/kernel/ragged.hpp"
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/tma.hpp"
#include "common/ptx/wgmma.hpp"
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_83 {
namespace {

/// What a block works on, and what its threads have for it, as in stage 61.
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
constexpr float log2_e = 1.4426950408889634f;

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
                       KV_full = empty + 16 * num_buffers, dS_full = KV_full + 16,
                       dS_empty = dS_full + 8 * num_buffers, bytes = dS_empty + 8 * num_buffers;
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

/// Where a thread's fragment c has element e, in a tile whose first row and key of this thread are i and j.
__device__ __forceinline__ constexpr stage_70::Element element(int i, int j, int c, int e) {
  return {i, j, 8 * c + e % 2, e / 2 * 8};
}

/// Which P^T dropout leaves, a bit for each element of a thread: for its rows i + 8 c and for i + 8 c + 1.
template <int chunks>
struct Stays {
  std::uint32_t of_row[2] = {};

  __device__ __forceinline__ bool operator()(int c, int e) const {
    return of_row[e % 2] >> (2 * c + e / 2) & 1;
  }
  /// Asks the policy, for rows from i on and keys from j on. The random bytes of a row are for two
  /// neighbouring keys, which two lanes have: one of the two asks for row i, the other one for row i + 1,
  /// and each gives the other its bits.
  template <class Policy>
  __device__ __forceinline__ void ask(const Policy& policy, const typename Policy::Head& head, int i, int j,
                                      int lane) {
    constexpr int lanes_of_key = row_lanes;
    const int own = lane / lanes_of_key % 2;  // its row, and whether its key is the second one
    std::uint32_t mine = 0, others = 0;
#pragma unroll 1  // the random numbers of several rows at a time would take too many registers
    for (int c = 0; c < chunks; c += 2) {
      const int row = i + 8 * c + own;
      const Words bytes = policy.bytes(head, row, j);  // of this row, the one 8 behind it, and 32 keys
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int behind = row + at / 2 * 8, key = j + at % 2 * 8, neighbour = key + 1 - 2 * own;
        mine |= static_cast<std::uint32_t>(policy.stays(bytes, behind, key)) << (2 * c + at);
        others |= static_cast<std::uint32_t>(policy.stays(bytes, behind, neighbour)) << (2 * c + at);
      }
    }
    others = __shfl_xor_sync(~0u, others, lanes_of_key);
    of_row[0] = own == 0 ? mine : others;
    of_row[1] = own == 0 ? others : mine;
  }
};

/// What a thread knows of a tile that it works on.
struct Here {
  int i, j;           // its first row and key, in their sequence
  int row0, key0;     // where that begins
  std::int64_t head;  // query head, of those of all batch entries
};

/// Which rows see a key, counted from row i on: found once for all rows of a tile.
template <class Policy>
struct SeeingRows {
  int first, end;

  // A key behind the last one is seen by none. Where rows see all keys before their own one, it is seen
  // from row Nq on, and P of that is 0 in any case.
  static constexpr bool may_be_behind = !Policy::causal || Policy::begins_later;

  __device__ __forceinline__ SeeingRows(const Policy& policy, const Sizes& n, int i, int key)
      : first((may_be_behind && key >= n.Nk ? n.Nq : policy.rows_first(n, key)) - i),
        end(policy.rows_end(n, key) - i) {}
  __device__ __forceinline__ bool have(int di) const {
    return di >= first && (!Policy::begins_later || di < end);
  }
};

/// S^T becomes P^T = exp(S - L), as a power of 2, of the scores that the policy makes of S and of its own
/// numbers; a row that does not see a key has P = 0. What dropout leaves of P is rounded: the operand A of
/// P^T dO. Where the policy changes scores, P^T is multiplied with the slope at last: of P itself nothing
/// is needed any more.
template <class T, bool masked, class Policy, int chunks, int Br>
__device__ __forceinline__ void probabilities(f32 (&x)[chunks][4],  // S^T, then P^T
                                              std::uint32_t (&rounded)[chunks / 2][4],
                                              smem_tile<f32, num_buffers, Br>& L2, int buffer,
                                              int quad_lane, float scale, const Sizes& n,
                                              const Policy& policy, const typename Policy::Head& head,
                                              const Stays<chunks>& stays, const Here& here) {
  // Scores that the policy has changed have the scale in them.
  const float scale_log2 = (Policy::changes_scores ? 1.f : scale) * log2_e;
  const bool all = policy.has_number(head, element(here.i, here.j, chunks - 1, 3));
  const int j = opaque(here.j);  // else what follows would be kept in registers from tile to tile
  const SeeingRows<Policy> rows_of_key[2] = {{policy, n, here.i, j}, {policy, n, here.i, j + 8}};
#pragma unroll
  for (int c = 0; c < chunks; c += 2) {
    f32 left[2][4];
#pragma unroll
    for (int y = 0; y < 2; ++y) {
      const float2 l = load2(L2.at(buffer, 8 * (c + y) + 2 * quad_lane));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const stage_70::Element at = element(here.i, here.j, c + y, e);
        const int row = at.i + at.di, key = at.j + at.dj;
        f32 s = x[c + y][e];
        if (Policy::has_bias && (all || policy.has_number(head, at)))
          s = policy.score(fmaf(s, scale, policy.number(head, at)), head, at);
        else if (Policy::changes_scores)
          s = policy.score(s * scale, head, at);
        f32 p = ex2_approx(fmaf(s, scale_log2, -(e % 2 == 0 ? l.x : l.y)));
        if (masked && !rows_of_key[e / 2].have(at.di)) p = 0.f;
        probe("P", here.head, here.row0 + row, here.key0 + key, p);
        left[y][e] = Policy::drops && !stays(c + y, e) ? f32(0.f) : p;
        x[c + y][e] = Policy::changes_scores ? p * policy.slope(s, head, at) : p;
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      rounded[c / 2][e] = round_pair<T>(left[e / 2][e % 2 * 2], left[e / 2][e % 2 * 2 + 1]);
  }
}

/// dS = P * (dP - D), element by element, for the dP of what dropout has left.
template <class Policy, int chunks, int Br>
__device__ __forceinline__ void multiply(f32 (&x)[chunks][4],        // dP^T, then dS^T
                                         const f32 (&p)[chunks][4],  // P^T
                                         smem_tile<f32, num_buffers, Br>& D, int buffer, int quad_lane,
                                         const Policy& policy, const Stays<chunks>& stays) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const float2 sum = load2(D.at(buffer, 8 * c + 2 * quad_lane));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const f32 of_row = e % 2 == 0 ? sum.x : sum.y;
      x[c][e] = Policy::drops ? p[c][e] * fmaf(x[c][e], stays(c, e) ? policy.rescale() : 0.f, -of_row)
                              : p[c][e] * (x[c][e] - of_row);
    }
  }
}

/// Gives dS to the policy.
template <class Policy, int chunks>
__device__ __forceinline__ void give_gradient(const f32 (&x)[chunks][4],  // dS^T without the scale
                                              const Policy& policy, const typename Policy::Head& head,
                                              int i, int j) {
  const bool all = policy.has_number(head, element(i, j, chunks - 1, 3));
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const stage_70::Element at = element(i, j, c, e);
      if (all || policy.has_number(head, at)) policy.take_gradient(x[c][e], head, at);
    }
  }
}

/// dS^T, dK or dV, rounded: the operand A of a product.
template <class T, int chunks>
__device__ __forceinline__ void round_tile(std::uint32_t (&a)[chunks / 2][4], const f32 (&x)[chunks][4]) {
#pragma unroll
  for (int c = 0; c < chunks / 2; ++c) {
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

template <class T, class Policy, int d>
__global__ void __launch_bounds__(Tile<d>::threads, 1) wgmma_backward(
    const __grid_constant__ tensor_map Q_map,   // [batch, q_heads, Nq, columns]
    const __grid_constant__ tensor_map K_map,   // [batch, kv_heads, Nk, columns]
    const __grid_constant__ tensor_map V_map,   // [batch, kv_heads, Nk, columns]
    const __grid_constant__ tensor_map dO_map,  // [batch, q_heads, Nq, columns]
    const __grid_constant__ tensor_map L2_map,  // [batch, q_heads, padded_Nq]
    const __grid_constant__ tensor_map D_map,   // [batch, q_heads, padded_Nq]
    gmem<f32> dQ_sumg,  // [batch, q_heads, padded_Nq, d], 16 x 8 numbers after another
    gmem<T> dKg,        // [batch, kv_heads, Nk, columns]
    gmem<T> dVg,        // [batch, kv_heads, Nk, columns]
    BackwardSizes n, int padded_Nq,
    int sections,     // of a batch entry, where the first keys come first; else 1
    Policy policy) {  // what is not plain attention: which keys a row sees, what a score becomes
  static_assert(!Policy::skips_tiles, "the producer would have to agree on the tiles that are skipped");
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
  auto&& KV_full = dynamic_tile<mbarrier, 1, 1, "KV_full">(At::KV_full);
  auto&& dS_full = dynamic_tile<mbarrier, num_buffers, 1, "dS_full">(At::dS_full);
  auto&& dS_empty = dynamic_tile<mbarrier, num_buffers, 1, "dS_empty">(At::dS_empty);
  n.causal = Policy::causal;  // known when this is compiled

  // Where later rows see more keys heads come in sections, whose Q, dO and dQ_sum the L2 cache holds, and
  // of a section the first keys of all heads come first, since the most rows see them. Else head after
  // head.
  const int kv_head = Policy::causal ? blockIdx.z % sections * gridDim.x + blockIdx.x : blockIdx.y;
  const int b = blockIdx.z / sections, all_rows = n.Nq, all_keys = n.Nk;
  const bool packed = policy.sequences().given();
  const stage_70::Part part =
      policy.sequences().of_key(n, b, (Policy::causal ? blockIdx.y : blockIdx.x) * Bc, Bc);
  const int j0 = part.first;
  if (Policy::Sequences::packed && j0 >= n.Nk) return;  // more blocks are launched than there are tiles
  const int padded_row0 = policy.sequences().padded_row0(part, Br);  // in arrays of padded_Nq rows

  // The tiles of rows that see some of the keys, of all query heads of the group one after the other: they
  // add to the same dK and dV. Key j0 is seen first, and the last one last.
  const int first = policy.rows_first(n, j0) / Br * Br, end = policy.rows_end(n, j0 + Bc - 1);
  const int tiles_of_head = end > first ? (end - first + Br - 1) / Br : 0;
  const int num_tiles = n.group * tiles_of_head;
  // A packed sequence may have keys and no row.
  const bool seen = (Policy::each_key_is_seen && !Policy::Sequences::packed) || num_tiles > 0;

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_Q, of_dO}) {
        mbarrier_init(full.at(buffer, of), 1);
        mbarrier_init(empty.at(buffer, of),
                      4 * Tile<d>::warpgroups);  // a warp that multiplies says so once
      }
      mbarrier_init(dS_full.at(buffer, 0), 4 * Tile<d>::warpgroups);
      mbarrier_init(dS_empty.at(buffer, 0), 4 * Tile<d>::warpgroups);
    }
    mbarrier_init(KV_full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers must be initialised

  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<Tile<d>::producer_registers>();
    if (threadIdx.x > 0 || !seen) return;
    // Tells TMA to bring Q and L2, or dO and D, of a tile, as soon as their buffer is empty; in the first
    // round it is.
    const auto bring = [&](decltype(Q)& tile, const tensor_map& map, decltype(L2)& numbers,
                           const tensor_map& numbers_map, int of, int h, int i0, int number) {
      const int to = number % num_buffers, round = number / num_buffers;
      auto&& bar = full.at(to, of);
      mbarrier_wait(empty.at(to, of), 1 - round % 2);
      mbarrier_arrive_expect_tx(bar, Qt::bytes + 4 * Br);
      const auto [row, entry] = place_of(packed, b, i0, part.row0, n.Nq, all_rows);
      for (int p = 0; p < Qt::panels; ++p)
        tma_load<T>(tile.at((to * Qt::panels + p) * Br, 0), map, bar, p * Qt::columns, row, h, entry);
      tma_load<f32>(numbers.at(to, 0), numbers_map, bar, padded_row0 + i0, h, b, 0);
    };
    mbarrier_arrive_expect_tx(KV_full.at(0, 0), 2 * KVt::bytes);
    const auto [key, entry] = place_of(packed, b, j0, part.key0, n.Nk, all_keys);
    for (int p = 0; p < KVt::panels; ++p) {
      tma_load<T>(K.at(p * Bc, 0), K_map, KV_full.at(0, 0), p * KVt::columns, key, kv_head, entry);
      tma_load<T>(V.at(p * Bc, 0), V_map, KV_full.at(0, 0), p * KVt::columns, key, kv_head, entry);
    }
    int tile = 0;
    for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
      for (int i0 = first; i0 < end; i0 += Br, ++tile) {
        bring(Q, Q_map, L2, L2_map, of_Q, h, i0, tile);
        bring(dO, dO_map, D, D_map, of_dO, h, i0, tile);
      }
    }
    return;
  }

  registers_up<Tile<d>::registers>();
  const int warp = uniform(threadIdx.x / 32 - 4), warpgroup = warp / 4, lane = threadIdx.x % 32,
            quad = lane / row_lanes, quad_lane = lane % row_lanes;
  const int k0 = 16 * warp;  // its keys of a tile: k0 + quad and k0 + quad + 8
  // Its part of dQ of a tile: 64 rows and 64 columns, of which each warp has 16 rows.
  const int part_row = warpgroup / Tile<d>::column_blocks * 64,
            part_column = warpgroup % Tile<d>::column_blocks * 64;
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
  // It is there: this warp has read dS, and adds its part of dQ to what other blocks have added.
  gmem<f32> dQ_sum = dQ_sumg;
  const auto add_dQ = [&](const f32(&dQ)[8][4], int tile) {
    if (lane == 0) mbarrier_arrive(dS_empty.at(tile % num_buffers, 0));
#pragma unroll
    for (int x = 0; x < 8; ++x)
      atomic_add4(dQ_sum + (128 * x + 4 * lane), make_float4(dQ[x][0], dQ[x][1], dQ[x][2], dQ[x][3]));
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
  f32 next_S[Br / 8][4];  // S^T of the tile that comes next
  if (seen) mbarrier_wait(KV_full.at(0, 0), 0);
  if constexpr (Tile<d>::early_scores) {
    if (seen) {
      begin_S(next_S, 0);
      wgmma_wait<0>(next_S);
    }
  }
  const auto step = [&](int h, int i0, int tile) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    const int now = buffer * Qt::bytes;  // where this tile's Q and dO lie
    // What the first row sees ends first, and what the last one sees begins last.
    const int last_row = i0 + Br < n.Nq ? i0 + Br - 1 : n.Nq - 1;
    const bool masked =
        j0 + Bc > policy.keys_end(n, i0) || (Policy::begins_later && j0 < policy.keys_first(n, last_row));
    count_tile(masked);
    const typename Policy::Head head = policy.head(n, part.entry, h);
    const Here here = {i0 + 2 * quad_lane, j0 + k0 + quad, part.row0, part.key0, n.head(b, h)};

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
    Stays<Br / 8> stays;
    if (Policy::drops) stays.ask(policy, head, here.i, here.j, lane);
    if constexpr (!Tile<d>::early_scores) wgmma_wait<1>(P);
    std::uint32_t P_rounded[Br / 16][4], dS_rounded[Br / 16][4];
    if (masked)
      probabilities<T, true>(P, P_rounded, L2, buffer, quad_lane, n.scale, n, policy, head, stays, here);
    else
      probabilities<T, false>(P, P_rounded, L2, buffer, quad_lane, n.scale, n, policy, head, stays, here);

    // dV += P^T dO begins. dS = P * (dP - D), while it is under way
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Br; k += 16) wgmma<T>(dV, P_rounded[k / 16], dO_rows + now + Qt::at_row(k));
    wgmma_commit();
    wgmma_wait<1>(dP);
    multiply(dP, P, D, buffer, quad_lane, policy, stays);
    if (Policy::has_bias && policy.has_numbers()) give_gradient(dP, policy, head, here.i, here.j);
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
      begin_dQ(dQ, tile - 1);
      begin_dK();
      wgmma_wait<1>(dQ);
      add_dQ(dQ, tile - 1);  // while dK is under way
    } else {
      wgmma_fence();
      begin_dK();
    }
    dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + padded_row0 + i0 + part_row + warp % 4 * 16) * d +
             part_column * 16;
    if (Tile<d>::early_scores && tile + 1 < num_tiles) {  // S^T of the next tile, while dK is under way
      f32 S[Br / 8][4];
      begin_S(S, tile + 1);
      wgmma_wait<1>(dK);
      release(of_Q, buffer);
      wgmma_wait<0>(S);  // ptxas serialises products that are under way when a loop begins again
      copy_tile(next_S, S);
    } else {
      wgmma_wait<0>(dK);
      release(of_Q, buffer);
      // S is used no more: else the compiler would keep the old one beside the new one
      if constexpr (Tile<d>::early_scores) copy_tile<Br / 8>(next_S, {});
    }
  };
  int tile = 0;
  for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
    for (int i0 = first; i0 < end; i0 += Br, ++tile) step(h, i0, tile);
  }
  if (seen) {
    f32 dQ[8][4];  // of the last tile
    begin_dQ(dQ, num_tiles - 1);
    wgmma_wait<0>(dQ);
    add_dQ(dQ, num_tiles - 1);
  }

  // dK goes to the place of this warp's keys of K, dV to that of V, and from there to memory 16 bytes a
  // lane, whole rows at a time.
  // K and V change: all warps must have waited for the products that read them
  named_barrier_sync(1, 128 * Tile<d>::warpgroups);
#pragma unroll
  for (int x = 0; x < d / 8; ++x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      dK[x][e] *= n.scale;  // dS had no scale
      if (Policy::drops) dV[x][e] *= policy.rescale();
    }
  }
  std::uint32_t rounded[d / 16][4];
  round_tile<T>(rounded, dK);
  store_keys<KVt, T>(K, 0, rounded, k0, lane);
  round_tile<T>(rounded, dV);
  store_keys<KVt, T>(V, 0, rounded, k0, lane);
  __syncwarp();  // each row is read by lanes that have not written it: all must have
  const gmem<T> dKh = dKg + (n.dK.at(b, kv_head) + part.key0 * n.dK.row),
                dVh = dVg + (n.dV.at(b, kv_head) + part.key0 * n.dV.row);
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

}  // namespace
}  // namespace flashladder::stage_83
