// FlashAttention-2's third idea (Dao 2023, section 3.3): the warps of a block split Q instead of K. Each
// has rows of its own and all keys, so that m, l and O of a row are in one warp and nothing is exchanged
// between warps.
#include "common/kernel/host.hpp"

namespace flashladder::stage_14 {
namespace {

constexpr int Br = 64;  // rows of a tile of Q
template <int d>
constexpr int tile_keys = 4096 / d;  // Bc, keys of a tile of K and V: 16 KB of each, whatever d is
constexpr int warps = 8, threads = 32 * warps;

// Split-Q: a warp takes an eighth of the rows of a tile and all of its keys. Its lanes form a 2 x 16 grid.
constexpr int warp_rows = Br / warps;
constexpr int row_lanes = 2, key_lanes = 16;
constexpr int thread_rows = warp_rows / row_lanes;  // of a thread

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int pitch = d + 2;  // a row is two words longer: no bank conflicts
  static constexpr int KV_tile = 4 * tile_keys<d> * pitch;
  static constexpr int Q = 0, K = Q + 4 * Br * pitch, V = K + KV_tile, P = V + KV_tile,
                       bytes = P + 4 * Br * (tile_keys<d> + key_lanes);
};

template <int d>
__global__ void __launch_bounds__(threads) fa2_forward(gmem<const f32> Qg,  // [batch, q_heads, Nq, d]
                                                       gmem<const f32> Kg,  // [batch, kv_heads, Nk, d]
                                                       gmem<const f32> Vg,  // [batch, kv_heads, Nk, d]
                                                       gmem<f32> Og,        // [batch, q_heads, Nq, d]
                                                       gmem<f32> Lg,        // [batch, q_heads, Nq]
                                                       Sizes n) {
  constexpr int Bc = tile_keys<d>, thread_keys = Bc / key_lanes, pitch = Shared<d>::pitch;
  auto&& Q = dynamic_tile<f32, Br, pitch, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<f32, Bc, pitch, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<f32, Bc, pitch, "V">(Shared<d>::V);
  auto&& P = dynamic_tile<f32, Br, Bc + key_lanes, "P">(Shared<d>::P);

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // lab: where this thread's rows (r0 + a * row_lanes), keys (c0 + c * key_lanes) and columns of P V
  //   (x0 + x * key_lanes) begin, now that a warp has rows of its own and all keys
  // given: const int r0 = 0, c0 = 0, x0 = 0;
  const int r0 = warp * warp_rows + lane / key_lanes;  // its rows of a tile: r0 + a * row_lanes
  const int c0 = lane % key_lanes;                     // its keys: c0 + c * key_lanes
  const int x0 = lane % key_lanes;                     // its columns of P V: x0 + x * key_lanes
  // end of lab
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> Qh = Qg + n.Q.at(b, h);
  const gmem<const f32> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const f32> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<f32> Oh = Og + n.O.at(b, h), Lh = Lg + n.row0(b, h);

  load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
  f32 m[thread_rows], l[thread_rows] = {},
                      o[thread_rows][d / key_lanes] = {};  // of its rows; O~ of its columns
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) m[a] = -INFINITY;
  for (int j0 = 0; j0 < n.Nk; j0 += Bc) {
    __syncthreads();  // K and V change: all warps have read the last ones
    load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);
    load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
    __syncthreads();  // Q, K and V are read: all of them must be there
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

    // m_new = max(m, rowmax S), P~ = exp(S - m_new), l = e^(m - m_new) l + rowsum P~: over the lanes that
    // share a row
    f32 alpha[thread_rows];
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
      // lab: P~, alpha, l and m of row a, without any other warp
      f32 m_tile = s[a][0];
#pragma unroll
      for (int c = 1; c < thread_keys; ++c) m_tile = fmaxf(m_tile, s[a][c]);
      const f32 m_new = fmaxf(m[a], lanes_max<key_lanes>(m_tile));
      f32 l_tile = 0.f;
#pragma unroll
      for (int c = 0; c < thread_keys; ++c) {
        const f32 p = expf(s[a][c] - finite(m_new));
        l_tile += p;
        P(r0 + a * row_lanes, c0 + c * key_lanes) = p;
      }
      alpha[a] = expf(m[a] - finite(m_new));
      l[a] = alpha[a] * l[a] + lanes_sum<key_lanes>(l_tile);
      m[a] = m_new;
      // end of lab
      probe("m", n.head(b, h), i0 + r0 + a * row_lanes, j0, m[a]);
      probe("l", n.head(b, h), i0 + r0 + a * row_lanes, j0, l[a]);
    }
    // lab: O~ with this tile: all keys, all of this thread's columns, P~ as the lanes of the warp wrote it
    __syncwarp();  // P is read: this warp, which alone reads it, must have written it

    // O~ = e^(m - m_new) O~ + P~ V
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
#pragma unroll
      for (int x = 0; x < d / key_lanes; ++x) o[a][x] *= alpha[a];
    }
#pragma unroll 8
    for (int k = 0; k < Bc; ++k) {
      f32 p[thread_rows];
#pragma unroll
      for (int a = 0; a < thread_rows; ++a) p[a] = P(r0 + a * row_lanes, k);
#pragma unroll
      for (int x = 0; x < d / key_lanes; ++x) {
        const f32 v = V(k, x0 + x * key_lanes);
#pragma unroll
        for (int a = 0; a < thread_rows; ++a) mac(o[a][x], p[a], v);
      }
    }
    // end of lab
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
#pragma unroll
      for (int x = 0; x < d / key_lanes; ++x)
        probe("O~", n.head(b, h), i0 + r0 + a * row_lanes, x0 + x * key_lanes, o[a][x]);
    }
  }

  // O = O~ / l, L = m + log l
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) {
    const int i = i0 + r0 + a * row_lanes;
    const f32 inverse = 1.f / (l[a] == 0.f ? f32(1.f) : l[a]);  // a row that sees no key keeps O = 0
#pragma unroll
    for (int x = 0; x < d / key_lanes; ++x) {
      const f32 o_all = o[a][x] * inverse;
      if (i < n.Nq) Oh[i * n.O.row + x0 + x * key_lanes] = o_all;
    }
    if (x0 == 0 && i < n.Nq) Lh[i] = m[a] + logf(l[a]);
  }
}

void forward(const Forward& f) {
  const ForwardBuffers<> x(f);
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    launch("fa2_forward", fa2_forward<d>, dim3(tiles(f.problem.Nq, Br), x.heads, x.batch), threads,
           Shared<d>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 14,
    .name = "fa2_split_q",
    .title = "FA2: split-Q warps",
    .idea = "the warps split Q, not K: each has whole rows, and nothing is exchanged between warps",
    .claim = "shared m_part, l_part and O_part gone; barriers per tile 3 + max(4, d/16) -> 2",
    .before = 13,
    .supports = {.dtypes = fp32_only, .head_dims = fp32_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_14
