// The backward pass by roles: both warpgroups have the same 64 keys, and one has S, P and dV, the other dP,
// dS and dK. Of each key a thread holds half as many sums, so that there is room for 256 columns. P goes
// from one to the other through shared memory.
#include "common/kernel/dq_sum.hpp"
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/wgmma.hpp"

namespace flashladder::stage_56 {
namespace {

/// What a block works on, and what its threads have for it.
template <int d>
struct Tile {
  static constexpr int warpgroups = 2;                      // that multiply
  static constexpr int threads = 128 * (1 + warpgroups);    // with the producer's
  static constexpr int Bc = 64;                             // keys of a tile of K and V
  static constexpr int Br = 64;                             // rows of a tile of Q and dO
  static constexpr int part = d / warpgroups;               // columns of dQ of a warpgroup
  static constexpr int columns = part % 64 == 0 ? 64 : 32;  // of a panel: a part is whole panels
  static constexpr int registers = 240;                     // of a thread that multiplies
  static constexpr int producer_registers = 24;             // of one of the producer
};
constexpr int num_buffers = 2;  // of Q, dO, L2, D and dS
constexpr int of_Q = 0, of_dO = 1;

// Of its 64 keys a warp has 16, as wgmma's fragments are laid out: the four lanes of a quad have keys quad
// and quad + 8, each rows 2 quad_lane and 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 4;

template <int d>
using QTile = Panels<Tile<d>::Br, d, Tile<d>::columns>;
template <int d>
using KVTile = Panels<Tile<d>::Bc, d, Tile<d>::columns>;
template <int d>
using STile = Panels<Tile<d>::Bc, Tile<d>::Br>;  // dS^T

/// Where the tiles and the mbarriers begin in dynamic shared memory, in bytes, and how many bytes they
/// take.
template <int d>
struct Shared {
  static constexpr int K = 0, V = K + KVTile<d>::bytes, Q = V + KVTile<d>::bytes,
                       dO = Q + num_buffers * QTile<d>::bytes, dS = dO + num_buffers * QTile<d>::bytes,
                       P = dS + num_buffers * STile<d>::bytes, L2 = P + 4 * Tile<d>::Bc * Tile<d>::Br,
                       D = L2 + 4 * num_buffers * Tile<d>::Br, full = D + 4 * num_buffers * Tile<d>::Br,
                       empty = full + 16 * num_buffers, KV_full = empty + 16 * num_buffers,
                       bytes = KV_full + 16;
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

/// P^T goes to the warp of the other warpgroup that has the same keys, lane by lane.
template <int row_chunks, int all>
__device__ __forceinline__ void store_P(smem_tile<f32, all, 128>& P, const f32 (&p)[row_chunks][4],
                                        int warp, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c)
    store4(P.at(warp * row_chunks + c, 4 * lane), make_float4(p[c][0], p[c][1], p[c][2], p[c][3]));
}

/// dS = P * (dP - D), element by element, with the P^T that the other warp has stored.
template <int row_chunks, int Br, int all>
__device__ __forceinline__ void multiply(f32 (&x)[row_chunks][4],      // dP^T, then dS^T
                                         smem_tile<f32, all, 128>& P,  // as store_P leaves it
                                         smem_tile<f32, num_buffers, Br>& D, int buffer, int warp,
                                         int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const float2 sum = load2(D.at(buffer, 8 * c + 2 * (lane % row_lanes)));
    const float4 p = load4(P.at(warp * row_chunks + c, 4 * lane));
    x[c][0] = p.x * (x[c][0] - sum.x), x[c][1] = p.y * (x[c][1] - sum.y);
    x[c][2] = p.z * (x[c][2] - sum.x), x[c][3] = p.w * (x[c][3] - sum.y);
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
                   BackwardSizes n, int padded_Nq) {
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
  auto&& P = dynamic_tile<f32, Bc / 16 * (Br / 8), 128, "P">(At::P);  // P^T, as wgmma has it
  auto&& L2 = dynamic_tile<f32, num_buffers, Br, "L2">(At::L2);
  auto&& D = dynamic_tile<f32, num_buffers, Br, "D">(At::D);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(At::full);     // of Q, and of dO
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(At::empty);  // likewise
  auto&& KV_full = dynamic_tile<mbarrier, 1, 1, "KV_full">(At::KV_full);

  // Under the mask the first keys come first, of all heads, since the most rows see them: no block has much
  // left to do when the others end. But batch entry after batch entry: the L2 cache holds Q, dO and dQ of
  // its heads.
  const int kv_head = n.causal ? blockIdx.x : blockIdx.y, b = blockIdx.z;
  const int j0 = (n.causal ? blockIdx.y : blockIdx.x) * Bc;

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_Q, of_dO}) {
        mbarrier_init(full.at(buffer, of), 1);
        mbarrier_init(empty.at(buffer, of),
                      4 * Tile<d>::warpgroups);  // a warp that multiplies says so once
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
    registers_down<Tile<d>::producer_registers>();
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

  registers_up<Tile<d>::registers>();
  const int warp = uniform(threadIdx.x / 32 % 4), warpgroup = uniform(threadIdx.x / 128 - 1),
            lane = threadIdx.x % 32, quad = lane / row_lanes, quad_lane = lane % row_lanes;
  const bool of_dS = warpgroup == 1;                  // it has dP, dS and dK; the other one S, P and dV
  const int k0 = 16 * warp;                           // its keys of a tile: k0 + quad and k0 + quad + 8
  const int part_column = warpgroup * Tile<d>::part;  // its columns of dQ, of all rows
  const float scale_log2 = n.scale * log2_e;
  // What the tensor cores read: S^T = K Q^T and dV += P^T dO, or dP^T = V dO^T and dK += dS^T Q; then dS,
  // and K by columns.
  const auto keys = k_major<KVt::row_bytes, T>(of_dS ? V : K);
  const auto rows = k_major<Qt::row_bytes, T>(of_dS ? dO : Q);
  const auto rows_of_sum = mn_major<Qt::row_bytes, T>(of_dS ? Q : dO, Qt::panel_bytes);
  const auto dS_first = mn_major<St::row_bytes, T>(dS, St::panel_bytes);
  const auto K_part =
      mn_major<KVt::row_bytes, T>(K.at(part_column / KVt::columns * Bc, 0), KVt::panel_bytes);

  f32 sum[d / 8][4] = {};  // dV, or dK, as wgmma has it
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

    // S^T, or dP^T
    f32 x[Br / 8][4];
    mbarrier_wait(full.at(buffer, of_dS ? of_dO : of_Q), parity);
    wgmma_fence();  // what the threads have done with the registers is done
#pragma unroll
    for (int k = 0; k < d; k += 16)
      wgmma<T>(x, keys + KVt::at_column(k), rows + now + Qt::at_column(k), k > 0);
    wgmma_commit();
    wgmma_wait<0>(x);
    std::uint32_t rounded[Br / 16][4];
    if (!of_dS) {  // P = exp(S - L)
      probabilities(x, L2, buffer, scale_log2, quad_lane);
      if (masked && n.causal) mask_tile<true>(x, n, i0 + 2 * quad_lane, j0 + k0 + quad);
      if (masked && !n.causal) mask_tile<false>(x, n, i0 + 2 * quad_lane, j0 + k0 + quad);
      probe_transposed("P", n.head(b, h), i0, j0 + k0, x, lane);
      store_P(P, x, warp, lane);
      named_barrier_arrive(2 + warp, 64);
      round_tile<T>(rounded, x);
    } else {                             // dS = P * (dP - D)
      named_barrier_sync(2 + warp, 64);  // P is read: the other warp must have written it
      multiply(x, P, D, buffer, warp, lane);
      round_tile<T>(rounded, x);
      store_keys<St, T>(dS, buffer * St::panels * Bc, rounded, k0, lane);
      fence_proxy_async();  // what this thread has written is for the tensor cores
    }
    release(of_dS ? of_dO : of_Q, buffer);

    // dV += P^T dO, or dK += dS^T Q, begins
    mbarrier_wait(full.at(buffer, of_dS ? of_Q : of_dO), parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Br; k += 16) wgmma<T>(sum, rounded[k / 16], rows_of_sum + now + Qt::at_row(k));
    wgmma_commit();
    // dS is read: all threads of its warpgroup must have written theirs. P and the other buffer of dS
    // change next: P has been read, and all have waited for the products that read that dS
    named_barrier_sync(1, 128 * Tile<d>::warpgroups);

    // dQ = dS K, of this warpgroup's columns
    f32 dQ[Tile<d>::part / 8][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Bc; k += 16)
      wgmma<T>(dQ, dS_first + buffer * St::bytes + St::at_row(k), K_part + KVt::at_row(k), k > 0);
    wgmma_commit();
    wgmma_wait<0>(sum, dQ);
    release(of_dS ? of_Q : of_dO, buffer);
    const gmem<f32> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + i0 + 16 * warp) * d + part_column * 16;
#pragma unroll
    for (int c = 0; c < Tile<d>::part / 8; ++c)
      atomic_add4(dQ_sum + (128 * c + 4 * lane), make_float4(dQ[c][0], dQ[c][1], dQ[c][2], dQ[c][3]));
  });

  // dK goes to the place of this warp's keys of K, dV to that of V, and from there to memory 16 bytes a
  // lane, whole rows at a time.
  // K and V change: all warps must have waited for the products that read them
  named_barrier_sync(1, 128 * Tile<d>::warpgroups);
  auto&& dX = of_dS ? K : V;
#pragma unroll
  for (int x = 0; x < d / 8; ++x) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[x][e] *= of_dS ? n.scale : 1.f;  // dS had no scale
  }
  std::uint32_t rounded[d / 16][4];
  round_tile<T>(rounded, sum);
  store_keys<KVt, T>(dX, 0, rounded, k0, lane);
  __syncwarp();  // each row is read by lanes that have not written it: all must have
  const gmem<T> out = of_dS ? dKg + n.dK.at(b, kv_head) : dVg + n.dV.at(b, kv_head);
  const std::int64_t stride = of_dS ? n.dK.row : n.dV.row;
  constexpr int chunks = KVt::columns / 8;  // of a row of a panel: neighbouring lanes stay in one panel
#pragma unroll 4
  for (int e = lane; e < 16 * (d / 8); e += 32) {
    const int key = k0 + e / chunks % 16, j = j0 + key;
    const int c = e / (16 * chunks) * KVt::columns + e % chunks * 8;
    store_16B<T>(out + (j * stride + c), dX.at(KVt::row(key, c), KVt::column(key, c)), j < n.Nk && c < n.d);
  }
}

void backward(const Backward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const BackwardBuffers<T> x(f);
    for_head_dim<T, 64, 128, 192, 256>(f.problem.d, [&](auto d) {
      constexpr int Br = Tile<d>::Br, Bc = Tile<d>::Bc;
      const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch, Tc = tiles(f.problem.Nk, Bc);
      const int padded_Nq = Br * static_cast<int>(tiles(f.problem.Nq, Br));  // of whole tiles
      ExtraBuffer D(f, "D", heads * batch * std::int64_t{padded_Nq}), L2(f, "L2", D.elements()),
          dQ_sum(f, "dQ_sum", D.elements() * d);
      launch("prepare", prepare<T, d>, dim3(tiles(padded_Nq, helpers / helper_lanes), heads, batch),
             helpers, 0, x.O, x.dO, x.L, D, L2, dQ_sum, x.sizes, padded_Nq);
      launch("wgmma_backward", wgmma_backward<T, d>,
             f.problem.causal ? dim3(kv_heads, Tc, batch) : dim3(Tc, kv_heads, batch), Tile<d>::threads,
             Shared<d>::bytes, map_of<QTile<d>>(f, "Q", x.Q), map_of<KVTile<d>>(f, "K", x.K),
             map_of<KVTile<d>>(f, "V", x.V), map_of<QTile<d>>(f, "dO", x.dO),
             map_of_rows("L2", L2, batch, heads, padded_Nq, Br),
             map_of_rows("D", D, batch, heads, padded_Nq, Br), dQ_sum, x.dK, x.dV, x.sizes, padded_Nq);
      launch("convert", convert<T, d>,
             dim3(tiles(tiles(f.problem.Nq, 16) * std::int64_t{d}, helpers), heads, batch), helpers, 0,
             dQ_sum, x.dQ, x.sizes, padded_Nq);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 56,
    .name = "roles_backward",
    .title = "backward by roles",
    .idea =
        "two warpgroups share 64 keys: one has S, P and dV, the other dP, dS and dK, so that the sums "
        "of 256 columns fit",
    .claim =
        "head dimensions 16 -> 32; wgmmas of a warpgroup and tile (2 D + 2 Br + Bc) / 16 -> "
        "(D + Br + Bc) / 16; P through shared memory once, 4 Br Bc bytes",
    .before = 54,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .backward = backward,
};

}  // namespace flashladder::stage_56
