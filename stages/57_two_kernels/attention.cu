// The backward pass in two kernels: dQ has one of its own, whose blocks have rows and go through the keys.
// It computes S and dP once more. No block adds to what another one writes, and the bits are the same every
// time.
#include "common/kernel/dq_sum.hpp"
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/wgmma.hpp"

namespace flashladder::stage_57 {
namespace {

/// What a block of the first kernel works on, which has keys, and what its threads have for it.
template <int d>
struct KeyTile {
  static constexpr int warpgroups = 2;                    // that multiply
  static constexpr int threads = 128 * (1 + warpgroups);  // with the producer's
  static constexpr int Bc = 64 * warpgroups;              // keys of a tile of K and V, 64 of each warpgroup
  static constexpr int Br = d <= 64 ? 128 : 64;           // rows of a tile of Q and dO
  static constexpr int registers = 240;                   // of a thread that multiplies
  static constexpr int producer_registers = 24;           // of one of the producer
  using Q = Panels<Br, d>;
  using K = Panels<Bc, d>;
};
/// The same of the second kernel, whose blocks have rows.
template <int d>
struct RowTile {
  static constexpr int warpgroups = 3;
  static constexpr int threads = 128 * (1 + warpgroups);
  static constexpr int Br = 64 * warpgroups;  // rows of a tile of Q and dO, 64 of each warpgroup
  static constexpr int Bc = 64;               // keys of a tile of K and V
  static constexpr int registers = 160;
  static constexpr int producer_registers = 32;
  using Q = Panels<Br, d>;
  using K = Panels<Bc, d>;
};
constexpr int num_buffers = 2;      // of Q, dO, L2 and D, or of K and V
constexpr int of_Q = 0, of_dO = 1;  // of the first kernel's buffers
constexpr int of_K = 0, of_V = 1;   // of the second one's

// Of its 64 keys a warp has 16, as wgmma's fragments are laid out: the four lanes of a quad have keys quad
// and quad + 8, each rows 2 quad_lane and 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 4;

/// Where the tiles and the mbarriers begin in dynamic shared memory, in bytes, and how many bytes they
/// take. First those of a kernel's own tile, then the buffers of the other ones.
template <int d>
struct KeyShared {
  using Tile = KeyTile<d>;
  static constexpr int K = 0, V = K + Tile::K::bytes, Q = V + Tile::K::bytes,
                       dO = Q + num_buffers * Tile::Q::bytes, L2 = dO + num_buffers * Tile::Q::bytes,
                       D = L2 + 4 * num_buffers * Tile::Br, full = D + 4 * num_buffers * Tile::Br,
                       empty = full + 16 * num_buffers, KV_full = empty + 16 * num_buffers,
                       bytes = KV_full + 16;
};
template <int d>
struct RowShared {
  using Tile = RowTile<d>;
  static constexpr int Q = 0, dO = Q + Tile::Q::bytes, K = dO + Tile::Q::bytes,
                       V = K + num_buffers * Tile::K::bytes, full = V + num_buffers * Tile::K::bytes,
                       empty = full + 16 * num_buffers, QdO_full = empty + 16 * num_buffers,
                       bytes = QdO_full + 16;
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

/// A warp's 16 keys of dV or dK, or rows of dQ, go to shared memory from row r0 on, and from there to
/// memory, 16 bytes a lane, whole rows at a time.
template <class Panels, class T, int chunks, int rows>
__device__ __forceinline__ void store_rows(smem_tile<T, rows, Panels::columns>& tile,
                                           const f32 (&x)[chunks][4],  // [16, 8 * chunks], as wgmma has it
                                           gmem<T> out,                // [N, columns]
                                           std::int64_t stride, int first, int N, int columns, int r0,
                                           int lane) {
  std::uint32_t rounded[chunks / 2][4];
  round_tile<T>(rounded, x);
#pragma unroll
  for (int c = 0; c < chunks / 2; ++c) {
    const int r = r0 + lane % 16, column = 16 * c + lane / 16 * 8;
    stmatrix_x4<T>(tile.at(Panels::row(r, column), Panels::column(r, column)), rounded[c]);
  }
  __syncwarp();  // each row is read by lanes that have not written it: all must have
  constexpr int panel = Panels::columns / 8;  // chunks of a row of a panel: neighbouring lanes stay in one
#pragma unroll 4
  for (int e = lane; e < 16 * chunks; e += 32) {
    const int r = r0 + e / panel % 16, i = first + r,
              c = e / (16 * panel) * Panels::columns + e % panel * 8;
    store_16B<T>(out + (i * stride + c), tile.at(Panels::row(r, c), Panels::column(r, c)),
                 i < N && c < columns);
  }
}

/// x *= factor, element by element.
template <int chunks>
__device__ __forceinline__ void scale_sums(f32 (&x)[chunks][4], float factor) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] *= factor;
  }
}

template <class T, int d>
__global__ void __launch_bounds__(KeyTile<d>::threads, 1)
    wgmma_dK_dV(const __grid_constant__ tensor_map Q_map,   // [batch, q_heads, Nq, d]
                const __grid_constant__ tensor_map K_map,   // [batch, kv_heads, Nk, d]
                const __grid_constant__ tensor_map V_map,   // [batch, kv_heads, Nk, d]
                const __grid_constant__ tensor_map dO_map,  // [batch, q_heads, Nq, d]
                const __grid_constant__ tensor_map L2_map,  // [batch, q_heads, padded_Nq]
                const __grid_constant__ tensor_map D_map,   // [batch, q_heads, padded_Nq]
                gmem<T> dKg,                                // [batch, kv_heads, Nk, d]
                gmem<T> dVg,                                // [batch, kv_heads, Nk, d]
                BackwardSizes n) {
  using Tile = KeyTile<d>;
  using At = KeyShared<d>;
  using Qt = typename Tile::Q;
  using KVt = typename Tile::K;
  constexpr int Br = Tile::Br, Bc = Tile::Bc;
  auto&& K = dynamic_tile<T, KVt::panels * Bc, KVt::columns, "K">(At::K);
  auto&& V = dynamic_tile<T, KVt::panels * Bc, KVt::columns, "V">(At::V);
  auto&& Q = dynamic_tile<T, num_buffers * Qt::panels * Br, Qt::columns, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, num_buffers * Qt::panels * Br, Qt::columns, "dO">(At::dO);
  auto&& L2 = dynamic_tile<f32, num_buffers, Br, "L2">(At::L2);
  auto&& D = dynamic_tile<f32, num_buffers, Br, "D">(At::D);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(At::full);     // of Q, and of dO
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(At::empty);  // likewise
  auto&& KV_full = dynamic_tile<mbarrier, 1, 1, "KV_full">(At::KV_full);

  // Under the mask the first keys come first, of all heads, since the most rows see them: no block has much
  // left to do when the others end. But batch entry after batch entry: the L2 cache holds Q and dO of its
  // heads.
  const int kv_head = n.causal ? blockIdx.x : blockIdx.y, b = blockIdx.z;
  const int j0 = (n.causal ? blockIdx.y : blockIdx.x) * Bc;

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_Q, of_dO}) {
        mbarrier_init(full.at(buffer, of), 1);
        mbarrier_init(empty.at(buffer, of),
                      4 * Tile::warpgroups);  // a warp that multiplies says so once
      }
    }
    mbarrier_init(KV_full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers must be initialised

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
  // round it is.
  const auto bring = [&](auto&& tile, const tensor_map& map, auto&& numbers, const tensor_map& numbers_map,
                         int of, int h, int i0, int number) {
    const int to = number % num_buffers, round = number / num_buffers;
    auto&& bar = full.at(to, of);
    mbarrier_wait(empty.at(to, of), 1 - round % 2);
    mbarrier_arrive_expect_tx(bar, Qt::bytes + 4 * Br);
    for (int p = 0; p < Qt::panels; ++p)
      tma_load<T>(tile.at((to * Qt::panels + p) * Br, 0), map, bar, p * Qt::columns, i0, h, b);
    tma_load<f32>(numbers.at(to, 0), numbers_map, bar, i0, h, b, 0);
  };
  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<Tile::producer_registers>();
    if (threadIdx.x > 0) return;
    mbarrier_arrive_expect_tx(KV_full.at(0, 0), 2 * KVt::bytes);
    for (int p = 0; p < KVt::panels; ++p) {
      tma_load<T>(K.at(p * Bc, 0), K_map, KV_full.at(0, 0), p * KVt::columns, j0, kv_head, b);
      tma_load<T>(V.at(p * Bc, 0), V_map, KV_full.at(0, 0), p * KVt::columns, j0, kv_head, b);
    }
    for_each_tile([&](int h, int i0, int tile) {
      bring(Q, Q_map, L2, L2_map, of_Q, h, i0, tile);
      bring(dO, dO_map, D, D_map, of_dO, h, i0, tile);
    });
    return;
  }

  registers_up<Tile::registers>();
  const int warp = uniform(threadIdx.x / 32 - 4), warpgroup = warp / 4, lane = threadIdx.x % 32,
            quad = lane / row_lanes, quad_lane = lane % row_lanes;
  const int k0 = 16 * warp;  // its keys of a tile: k0 + quad and k0 + quad + 8
  const float scale_log2 = n.scale * log2_e;
  // What the tensor cores read. As A: the warpgroup's keys of K and V.
  const auto K_keys = k_major<KVt::row_bytes, T>(K.at(warpgroup * 64, 0));
  const auto V_keys = k_major<KVt::row_bytes, T>(V.at(warpgroup * 64, 0));
  // As B: Q and dO of the first buffer, for products over columns and over rows.
  const auto Q_first = k_major<Qt::row_bytes, T>(Q), dO_first = k_major<Qt::row_bytes, T>(dO);
  const auto Q_rows = mn_major<Qt::row_bytes, T>(Q, Qt::panel_bytes),
             dO_rows = mn_major<Qt::row_bytes, T>(dO, Qt::panel_bytes);

  f32 dV[d / 8][4] = {}, dK[d / 8][4] = {};  // of its keys, as wgmma has them
  // This warp has read Q and L2, or dO and D.
  const auto release = [&](int of, int buffer) {
    if (lane == 0) mbarrier_arrive(empty.at(buffer, of));
  };
  mbarrier_wait(KV_full.at(0, 0), 0);
  for_each_tile([&](int h, int i0, int tile) {
    const int buffer = tile % num_buffers, parity = tile / num_buffers % 2;
    const int now = buffer * Qt::bytes;                // where this tile's Q and dO lie
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S^T = K Q^T and dP^T = V dO^T begin
    f32 P[Br / 8][4], dP[Br / 8][4];  // S^T, then P^T; dP^T, then dS^T
    mbarrier_wait(full.at(buffer, of_Q), parity);
    wgmma_fence();  // what the threads have done with the registers is done
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(P, K_keys + KVt::at_column(k), Q_first + now + Qt::at_column(k), k > 0);
    wgmma_commit();
    mbarrier_wait(full.at(buffer, of_dO), parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(dP, V_keys + KVt::at_column(k), dO_first + now + Qt::at_column(k), k > 0);
    wgmma_commit();
    // P = exp(S - L), while dP^T is under way
    wgmma_wait<1>(P);
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

    // dK += dS^T Q begins
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Br; k += 16) wgmma<T>(dK, dS_rounded[k / 16], Q_rows + now + Qt::at_row(k));
    wgmma_commit();
    wgmma_wait<1>(dV);
    release(of_dO, buffer);
    wgmma_wait<0>(dK);
    release(of_Q, buffer);
  });

  // dK goes to the place of this warp's keys of K, dV to that of V.
  // K and V change: all warps of the warpgroup, whose products alone read these keys, must have waited for
  // them
  named_barrier_sync(1 + warpgroup, 128);
  scale_sums(dK, n.scale);  // dS had no scale
  store_rows<KVt, T>(K, dK, dKg + n.dK.at(b, kv_head), n.dK.row, j0, n.Nk, n.d, k0, lane);
  store_rows<KVt, T>(V, dV, dVg + n.dV.at(b, kv_head), n.dV.row, j0, n.Nk, n.d, k0, lane);
}

template <class T, int d>
__global__ void __launch_bounds__(RowTile<d>::threads, 1)
    wgmma_dQ(const __grid_constant__ tensor_map Q_map,   // [batch, q_heads, Nq, d]
             const __grid_constant__ tensor_map K_map,   // [batch, kv_heads, Nk, d]
             const __grid_constant__ tensor_map V_map,   // [batch, kv_heads, Nk, d]
             const __grid_constant__ tensor_map dO_map,  // [batch, q_heads, Nq, d]
             gmem<const f32> L2g,                        // [batch, q_heads, padded_Nq]
             gmem<const f32> Dg,                         // [batch, q_heads, padded_Nq]
             gmem<T> dQg,                                // [batch, q_heads, Nq, d]
             BackwardSizes n, int padded_Nq) {
  using Tile = RowTile<d>;
  using At = RowShared<d>;
  using Qt = typename Tile::Q;
  using KVt = typename Tile::K;
  constexpr int Br = Tile::Br, Bc = Tile::Bc;
  auto&& Q = dynamic_tile<T, Qt::panels * Br, Qt::columns, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, Qt::panels * Br, Qt::columns, "dO">(At::dO);
  auto&& K = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "K">(At::K);
  auto&& V = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "V">(At::V);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(At::full);     // of K, and of V
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(At::empty);  // likewise
  auto&& QdO_full = dynamic_tile<mbarrier, 1, 1, "QdO_full">(At::QdO_full);

  // Under the mask the last rows come first, since they see the most keys.
  const int h = blockIdx.y, b = blockIdx.z;
  const int i0 = (n.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * Br;
  const int visible = n.visible_keys(i0 + Br - 1);  // to the last row, which sees the most

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_K, of_V}) {
        mbarrier_init(full.at(buffer, of), 1);
        mbarrier_init(empty.at(buffer, of), 4 * Tile::warpgroups);  // a warp that multiplies says so once
      }
    }
    mbarrier_init(QdO_full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers must be initialised

  // Tells TMA to bring a tile of K or V as soon as its buffer is empty; in the first round it is.
  const auto bring = [&](auto&& tile, const tensor_map& map, int of, int j0) {
    const int to = j0 / Bc % num_buffers, round = j0 / Bc / num_buffers;
    auto&& bar = full.at(to, of);
    mbarrier_wait(empty.at(to, of), 1 - round % 2);
    mbarrier_arrive_expect_tx(bar, KVt::bytes);
    for (int p = 0; p < KVt::panels; ++p)
      tma_load<T>(tile.at((to * KVt::panels + p) * Bc, 0), map, bar, p * KVt::columns, j0, n.kv_head(h), b);
  };
  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<Tile::producer_registers>();
    if (threadIdx.x > 0 || visible <= 0) return;
    mbarrier_arrive_expect_tx(QdO_full.at(0, 0), 2 * Qt::bytes);
    for (int p = 0; p < Qt::panels; ++p) {
      tma_load<T>(Q.at(p * Br, 0), Q_map, QdO_full.at(0, 0), p * Qt::columns, i0, h, b);
      tma_load<T>(dO.at(p * Br, 0), dO_map, QdO_full.at(0, 0), p * Qt::columns, i0, h, b);
    }
    for (int j0 = 0; j0 < visible; j0 += Bc) {
      bring(K, K_map, of_K, j0);
      bring(V, V_map, of_V, j0);
    }
    return;
  }

  registers_up<Tile::registers>();
  const int warp = uniform(threadIdx.x / 32 - 4), warpgroup = warp / 4, lane = threadIdx.x % 32,
            quad = lane / row_lanes, quad_lane = lane % row_lanes;
  const int r0 = 16 * warp;  // its rows of a tile: r0 + quad and r0 + quad + 8
  const float scale_log2 = n.scale * log2_e;
  // What the tensor cores read. As A: the warpgroup's rows of Q and dO. As B: K and V of the first buffer,
  // for products over columns, and K for that over keys.
  const auto Q_rows = k_major<Qt::row_bytes, T>(Q.at(warpgroup * 64, 0));
  const auto dO_rows = k_major<Qt::row_bytes, T>(dO.at(warpgroup * 64, 0));
  const auto K_first = k_major<KVt::row_bytes, T>(K), V_first = k_major<KVt::row_bytes, T>(V);
  const auto K_keys = mn_major<KVt::row_bytes, T>(K, KVt::panel_bytes);

  f32 L2[2], D[2];  // of its two rows
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    const int i = i0 + r0 + quad + 8 * a;
    const bool there = i < n.Nq;  // else P = 0
    L2[a] = there ? L2g[n.head(b, h) * padded_Nq + i] : f32(INFINITY);
    D[a] = there ? Dg[n.head(b, h) * padded_Nq + i] : f32(0.f);
  }
  // This warp has read K, or V.
  const auto release = [&](int of, int buffer) {
    if (lane == 0) mbarrier_arrive(empty.at(buffer, of));
  };
  f32 dQ[d / 8][4] = {};  // of its rows, as wgmma has it
  if (visible > 0) mbarrier_wait(QdO_full.at(0, 0), 0);
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    const int buffer = j0 / Bc % num_buffers, parity = j0 / Bc / num_buffers % 2;
    const int now = buffer * KVt::bytes;               // where this tile's K and V lie
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S = Q K^T and dP = dO V^T begin
    f32 P[Bc / 8][4], dP[Bc / 8][4];  // S, then P; dP, then dS
    mbarrier_wait(full.at(buffer, of_K), parity);
    wgmma_fence();  // what the threads have done with the registers is done
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(P, Q_rows + Qt::at_column(k), K_first + now + KVt::at_column(k), k > 0);
    wgmma_commit();
    mbarrier_wait(full.at(buffer, of_V), parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(dP, dO_rows + Qt::at_column(k), V_first + now + KVt::at_column(k), k > 0);
    wgmma_commit();
    // P = exp(S - L), while dP is under way
    wgmma_wait<1>(P);
#pragma unroll
    for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) P[c][e] = ex2_approx(fmaf(P[c][e], scale_log2, -L2[e / 2]));
    }
    if (masked) {
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const int end = n.visible_keys(i0 + r0 + quad + 8 * a) - j0 - 2 * quad_lane;
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
          if (8 * c >= end) P[c][2 * a] = 0.f;
          if (8 * c + 1 >= end) P[c][2 * a + 1] = 0.f;
        }
      }
    }
    wgmma_wait<0>(dP);
    release(of_V, buffer);
    // dS = P * (dP - D)
#pragma unroll
    for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dP[c][e] = P[c][e] * (dP[c][e] - D[e / 2]);
    }
    std::uint32_t dS[Bc / 16][4];
    round_tile<T>(dS, dP);

    // dQ += dS K
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Bc; k += 16) wgmma<T>(dQ, dS[k / 16], K_keys + now + KVt::at_row(k));
    wgmma_commit();
    wgmma_wait<0>(dQ);
    release(of_K, buffer);
  }

  // dQ goes to the place of this warp's rows of Q.
  // Q changes: all warps of the warpgroup, whose products alone read these rows, must have waited for them
  named_barrier_sync(1 + warpgroup, 128);
  scale_sums(dQ, n.scale);  // dS had no scale
  store_rows<Qt, T>(Q, dQ, dQg + n.dQ.at(b, h), n.dQ.row, i0, n.Nq, n.d, r0, lane);
}

void backward(const Backward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const BackwardBuffers<T> x(f);
    for_head_dim<T, 64, 128>(f.problem.d, [&](auto d) {
      using Keys = KeyTile<d>;
      using Rows = RowTile<d>;
      const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch,
                     Tc = tiles(f.problem.Nk, Keys::Bc), Tr = tiles(f.problem.Nq, Rows::Br);
      const int padded_Nq = Keys::Br * static_cast<int>(tiles(f.problem.Nq, Keys::Br));  // of whole tiles
      ExtraBuffer D(f, "D", heads * batch * std::int64_t{padded_Nq}), L2(f, "L2", D.elements());
      launch("prepare_rows", prepare_rows<T, d>,
             dim3(tiles(padded_Nq, helpers / helper_lanes), heads, batch), helpers, 0, x.O, x.dO, x.L, D,
             L2, x.sizes, padded_Nq);
      launch("wgmma_dK_dV", wgmma_dK_dV<T, d>,
             f.problem.causal ? dim3(kv_heads, Tc, batch) : dim3(Tc, kv_heads, batch), Keys::threads,
             KeyShared<d>::bytes, map_of<typename Keys::Q>(f, "Q", x.Q),
             map_of<typename Keys::K>(f, "K", x.K), map_of<typename Keys::K>(f, "V", x.V),
             map_of<typename Keys::Q>(f, "dO", x.dO),
             map_of_rows("L2", L2, batch, heads, padded_Nq, Keys::Br),
             map_of_rows("D", D, batch, heads, padded_Nq, Keys::Br), x.dK, x.dV, x.sizes);
      launch("wgmma_dQ", wgmma_dQ<T, d>, dim3(Tr, heads, batch), Rows::threads, RowShared<d>::bytes,
             map_of<typename Rows::Q>(f, "Q", x.Q), map_of<typename Rows::K>(f, "K", x.K),
             map_of<typename Rows::K>(f, "V", x.V), map_of<typename Rows::Q>(f, "dO", x.dO), L2, D, x.dQ,
             x.sizes, padded_Nq);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 57,
    .name = "two_kernels",
    .title = "two kernels",
    .idea =
        "dQ has a kernel of its own, whose blocks have rows: no block adds to what another one writes, and "
        "the bits are the same every time",
    .claim =
        "atomics BH sum(live_i) Br D -> 0; extra memory 4 BH Tr Br (2 + D) -> 8 BH Tr Br bytes; products "
        "of a tile 5 -> 4 and 3",
    .before = 54,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8_up_to<128>},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .backward = backward,
};

}  // namespace flashladder::stage_57
