// FlashAttention-2's second idea (Dao 2023, section 3.2): the loops are swapped, tiles of Q outside; the
// outer loop is the grid: one block per tile of Q, so that O, m and l never leave the chip and a single
// head fills many blocks. The warps of a block still split the keys of a tile.
#include "common/kernel/host.hpp"

namespace flashladder::stage_13 {
namespace {

constexpr int Br = 64;  // rows of a tile of Q
template <int d>
constexpr int tile_keys = 4096 / d;  // Bc, keys of a tile of K and V: 16 KB of each, whatever d is
constexpr int warps = 8, threads = 32 * warps;

// Split-K: four warps take a quarter of the keys of a tile each, for half of its rows; the other four do
// the same for the other half. The lanes of a warp form an 8 x 4 grid.
constexpr int splits = 4;  // of the keys
constexpr int warp_rows = Br * splits / warps;
constexpr int row_lanes = 8, key_lanes = 4;
constexpr int thread_rows = warp_rows / row_lanes;  // of a thread

// All threads add up what the warps exchange: four threads for each row, some columns of O at a time.
constexpr int own_lanes = threads / Br;
template <int d>
constexpr int exchanged_columns = d == 32 ? 16 : 32;  // as many as shared memory has room for

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take. O_part
/// takes the place of a tile that no warp reads any more by then.
template <int d>
struct Shared {
  static constexpr int pitch = d + 2;  // a row is two words longer: no bank conflicts
  static constexpr int Q_bytes = 4 * Br * pitch, KV_bytes = 4 * tile_keys<d> * pitch,
                       O_part_bytes = 4 * splits * Br * (exchanged_columns<d> + 4);
  static constexpr int Q = 0, K = Q_bytes, O_part = K, V = K + std::max(KV_bytes, O_part_bytes),
                       P = V + KV_bytes, bytes = P + 4 * Br * (tile_keys<d> + key_lanes);
};

/// The maximum of row r over what the warps found.
__device__ __forceinline__ f32 max_over_warps(smem_tile<f32, splits, Br>& part, int r) {
  return fmaxf(fmaxf(part(0, r), part(1, r)), fmaxf(part(2, r), part(3, r)));
}
/// The sum of row r over what the warps found.
__device__ __forceinline__ f32 sum_over_warps(smem_tile<f32, splits, Br>& part, int r) {
  return f32(part(0, r)) + part(1, r) + part(2, r) + part(3, r);
}

template <int d>
__global__ void __launch_bounds__(threads, 2) fa2_forward(gmem<const f32> Qg,  // [batch, q_heads, Nq, d]
                                                          gmem<const f32> Kg,  // [batch, kv_heads, Nk, d]
                                                          gmem<const f32> Vg,  // [batch, kv_heads, Nk, d]
                                                          gmem<f32> Og,        // [batch, q_heads, Nq, d]
                                                          gmem<f32> Lg,        // [batch, q_heads, Nq]
                                                          Sizes n) {
  constexpr int Bc = tile_keys<d>, warp_keys = Bc / splits, thread_keys = warp_keys / key_lanes;
  constexpr int columns = exchanged_columns<d>, own_columns = columns / own_lanes;
  constexpr int pitch = Shared<d>::pitch;
  auto&& Q = dynamic_tile<f32, Br, pitch, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<f32, Bc, pitch, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<f32, Bc, pitch, "V">(Shared<d>::V);
  auto&& P = dynamic_tile<f32, Br, Bc + key_lanes, "P">(Shared<d>::P);
  auto&& O_part = dynamic_tile<f32, splits * Br, columns + 4, "O_part">(Shared<d>::O_part);
  __shared__ smem_array<f32, Br, 1, "m"> m;
  __shared__ smem_array<f32, Br, 1, "l"> l;
  __shared__ smem_array<f32, splits, Br, "m_part"> m_part;
  __shared__ smem_array<f32, splits, Br, "l_part"> l_part;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int split = warp % splits, k0 = split * warp_keys;      // which keys its warp takes
  const int r0 = warp / splits * warp_rows + lane / key_lanes;  // its rows of a tile: r0 + a * row_lanes
  const int c0 = k0 + lane % key_lanes;                         // its keys: c0 + c * key_lanes
  const int x0 = lane % key_lanes;                              // its columns of P V: x0 + x * key_lanes
  const int own_r = thread / own_lanes,
            own_x0 = thread % own_lanes;  // its row, its columns of the exchanged sums
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> Qh = Qg + n.Q.at(b, h);
  const gmem<const f32> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const f32> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<f32> Oh = Og + n.O.at(b, h), Lh = Lg + n.row0(b, h);

  // lab: what the block needs for its rows before the first tile of keys
  load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
  if (thread < Br) {
    m[thread] = -INFINITY;
    l[thread] = 0.f;
  }
  // end of lab
  f32 o[d / columns][own_columns] = {};  // O~ of its row and columns
  for (int j0 = 0; j0 < n.Nk; j0 += Bc) {
    // K, V, m and l change without a new barrier: the one after O_part was read lies in between.
    load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);
    load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
    __syncthreads();  // Q, K, V, m and l are read: all of them must be there
    const bool masked = n.causal || j0 + Bc > n.Nk;
    count_tile(masked);

    // S = scale * Q K^T
    f32 s[thread_rows][thread_keys] = {};
#pragma unroll 8
    for (int k = 0; k < d; ++k) {
      f32 q[thread_rows];
#pragma unroll
      for (int a = 0; a < thread_rows; ++a) q[a] = Q(r0 + a * row_lanes, k);
#pragma unroll
      for (int c = 0; c < thread_keys; ++c) {
        const f32 key = K(c0 + c * key_lanes, k);
#pragma unroll
        for (int a = 0; a < thread_rows; ++a) mac(s[a][c], q[a], key);
      }
    }
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
      const int i = i0 + r0 + a * row_lanes;
#pragma unroll
      for (int c = 0; c < thread_keys; ++c) {
        const int j = j0 + c0 + c * key_lanes;
        s[a][c] *= n.scale;
        if (masked && j >= n.visible_keys(i)) s[a][c] = -INFINITY;
        probe("S", n.head(b, h), i, j, s[a][c]);
      }
    }

    // m_new = max(m, rowmax S): over the lanes that share a row, then over the warps.
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
      f32 m_warp = s[a][0];
#pragma unroll
      for (int c = 1; c < thread_keys; ++c) m_warp = fmaxf(m_warp, s[a][c]);
      m_warp = lanes_max<key_lanes>(m_warp);
      if (lane % key_lanes == 0) m_part(split, r0 + a * row_lanes) = m_warp;
    }
    __syncthreads();  // m_part is read: every warp must have written its own

    // P~ = exp(S - m_new), rowsum P~: this warp's part.
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
      const int r = r0 + a * row_lanes;
      const f32 m_new = fmaxf(m[r], max_over_warps(m_part, r));
      f32 l_warp = 0.f;
#pragma unroll
      for (int c = 0; c < thread_keys; ++c) {
        const f32 p = expf(s[a][c] - finite(m_new));
        l_warp += p;
        P(r, c0 + c * key_lanes) = p;
      }
      l_warp = lanes_sum<key_lanes>(l_warp);
      if (lane % key_lanes == 0) l_part(split, r) = l_warp;
    }
    __syncthreads();  // l_part and P are read: every warp must have written its own

    const f32 m_old = m[own_r], l_old = l[own_r];
    const f32 m_new = fmaxf(m_old, max_over_warps(m_part, own_r));
    const f32 alpha = expf(m_old - finite(m_new));
    const f32 l_new = alpha * l_old + sum_over_warps(l_part, own_r);

    // O~ = e^(m - m_new) O~ + P~ V
    const int i = i0 + own_r;
#pragma unroll
    for (int d0 = 0; d0 < d; d0 += columns) {
      f32 pv[thread_rows][columns / key_lanes] = {};  // this warp's part of P~ V: its rows and keys
#pragma unroll 4
      for (int k = 0; k < warp_keys; ++k) {
        f32 p[thread_rows];
#pragma unroll
        for (int a = 0; a < thread_rows; ++a) p[a] = P(r0 + a * row_lanes, k0 + k);
#pragma unroll
        for (int x = 0; x < columns / key_lanes; ++x) {
          const f32 v = V(k0 + k, d0 + x0 + x * key_lanes);
#pragma unroll
          for (int a = 0; a < thread_rows; ++a) mac(pv[a][x], p[a], v);
        }
      }
#pragma unroll
      for (int a = 0; a < thread_rows; ++a) {
#pragma unroll
        for (int x = 0; x < columns / key_lanes; ++x)
          O_part(split * Br + r0 + a * row_lanes, x0 + x * key_lanes) = pv[a][x];
      }
      __syncthreads();  // O_part is read: every warp must have written its own
#pragma unroll
      for (int x = 0; x < own_columns; ++x) {
        const int c = own_x0 + x * own_lanes;
        f32 sum = 0.f;
#pragma unroll
        for (int w = 0; w < splits; ++w) sum += O_part(w * Br + own_r, c);
        o[d0 / columns][x] = alpha * o[d0 / columns][x] + sum;
        probe("O~", n.head(b, h), i, d0 + c, o[d0 / columns][x]);
      }
      __syncthreads();  // O_part changes: all warps have read it
    }
    // lab: what the next tile of keys needs of m and l
    if (own_x0 == 0) {
      m[own_r] = m_new;
      l[own_r] = l_new;
    }
    // end of lab
    probe("m", n.head(b, h), i, j0, m_new);
    probe("l", n.head(b, h), i, j0, l_new);
  }
  // lab: O and L of the block's rows, written once
  __syncwarp();  // m and l are read: the lane that has them must have written them

  // O = O~ / l, L = m + log l
  const int i = i0 + own_r;
  const f32 l_all = l[own_r];
  const f32 inverse = 1.f / (l_all == 0.f ? f32(1.f) : l_all);  // a row that sees no key keeps O = 0
#pragma unroll
  for (int d0 = 0; d0 < d; d0 += columns) {
#pragma unroll
    for (int x = 0; x < own_columns; ++x) {
      const f32 o_all = o[d0 / columns][x] * inverse;
      if (i < n.Nq) Oh[i * n.O.row + d0 + own_x0 + x * own_lanes] = o_all;
    }
  }
  if (own_x0 == 0 && i < n.Nq) Lh[i] = m[own_r] + logf(l_all);
  // end of lab
}

void forward(const Forward& f) {
  const ForwardBuffers<> x(f);
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    // lab: the grid, which replaces the loop over the tiles of Q
    // given: launch("fa2_forward", fa2_forward<d>, dim3(1, x.heads, x.batch), threads,
    // given:        Shared<d>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes);
    launch("fa2_forward", fa2_forward<d>, dim3(tiles(f.problem.Nq, Br), x.heads, x.batch), threads,
           Shared<d>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes);
    // end of lab
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 13,
    .name = "fa2_sequence_parallel",
    .title = "FA2: sequence parallelism",
    .idea = "a block for every tile of Q; O, m and l never leave the chip",
    .claim = "global writes Tc (Nq d + 2 Nq) - Nq -> Nq d + Nq; blocks BH -> BH Tr; extra memory 2 Nq -> 0",
    .before = 12,
    .supports = {.dtypes = fp32_only, .head_dims = fp32_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_13
