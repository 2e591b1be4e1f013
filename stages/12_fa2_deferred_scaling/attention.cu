// FlashAttention-2's first idea (Dao 2023, section 3.1): O stays unscaled while it travels, and is divided
// by l once, at the end, where L = m + log l takes the place of m and l. Tiles of K and V in the outer
// loop, tiles of Q in the inner one, one block per head, warps that split the keys of a tile: all that is
// as in FlashAttention-1.
#include "common/kernel/host.hpp"

namespace flashladder::stage_12 {
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
  static constexpr int Q = 0, O_part = 0, K = std::max(Q_bytes, O_part_bytes), V = K + KV_bytes,
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
                                                          gmem<f32> mg,        // [batch, q_heads, Nq]
                                                          gmem<f32> lg,        // [batch, q_heads, Nq]
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
  const int h = blockIdx.x, b = blockIdx.y;
  const gmem<const f32> Qh = Qg + n.Q.at(b, h);
  const gmem<const f32> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const f32> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<f32> Oh = Og + n.O.at(b, h), Lh = Lg + n.row0(b, h), mh = mg + n.row0(b, h),
                  lh = lg + n.row0(b, h);

  for (int j0 = 0; j0 < n.Nk; j0 += Bc) {
    const bool last = j0 + Bc >= n.Nk;
    load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);
    load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
    for (int i0 = 0; i0 < n.Nq; i0 += Br) {
      // Q, K, V, m and l change without a new barrier: the one after O_part was read lies in between.
      load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
      if (own_x0 == 0) {  // the thread that wrote m and l: a head of one tile has no barrier between
        f32 m_old = -INFINITY, l_old = 0.f;
        if (j0 > 0 && i0 + own_r < n.Nq) {
          m_old = mh[i0 + own_r];
          l_old = lh[i0 + own_r];
        }
        m[own_r] = m_old;
        l[own_r] = l_old;
      }
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
        // lab: the maximum that the exponentials of row r are relative to
        // given: const f32 m_new = 0.f;
        const f32 m_new = fmaxf(m[r], max_over_warps(m_part, r));
        // end of lab
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
      // lab: m and l with this tile, what O~ is multiplied by now, and what by at the end
      // given: const f32 m_new = m_old, alpha = 1.f, l_new = l_old, inverse = 1.f;
      const f32 m_new = fmaxf(m_old, max_over_warps(m_part, own_r));
      const f32 alpha = expf(m_old - finite(m_new));
      const f32 l_new = alpha * l_old + sum_over_warps(l_part, own_r);
      f32 inverse = 0.f;
      if (last) inverse = 1.f / (l_new == 0.f ? f32(1.f) : l_new);  // a row that sees no key keeps O = 0
      // end of lab

      // O~ = e^(m - m_new) O~ + P~ V, and O = O~ / l at the end
      const int i = i0 + own_r;
#pragma unroll 1  // registers for one chunk alone
      for (int d0 = 0; d0 < d; d0 += columns) {
        f32 o[own_columns] = {};  // of the tile before: asked for now, it comes during the products
#pragma unroll
        for (int x = 0; x < own_columns; ++x)
          if (j0 > 0 && i < n.Nq) o[x] = Oh[i * n.O.row + d0 + own_x0 + x * own_lanes];
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
          // lab: O~ with this tile, above the probe; what the last tile does to it, below
          // given: probe("O~", n.head(b, h), i, d0 + c, o[x]);
          o[x] = alpha * o[x] + sum;
          probe("O~", n.head(b, h), i, d0 + c, o[x]);
          if (last) o[x] *= inverse;
          // end of lab
          if (i < n.Nq) Oh[i * n.O.row + d0 + c] = o[x];
        }
        __syncthreads();  // O_part changes: all warps have read it
      }
      if (own_x0 == 0 && i < n.Nq) {
        // lab: what is kept of the row: for the next tile, or as the result
        if (last) {
          Lh[i] = m_new + logf(l_new);
        } else {
          mh[i] = m_new;
          lh[i] = l_new;
        }
        // end of lab
      }
      probe("m", n.head(b, h), i, j0, m_new);
      probe("l", n.head(b, h), i, j0, l_new);
    }
  }
}

void forward(const Forward& f) {
  const ForwardBuffers<> x(f);
  ExtraBuffer m(f, "m", x.L.elements()), l(f, "l", x.L.elements());
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    launch("fa2_forward", fa2_forward<d>, dim3(x.heads, x.batch), threads, Shared<d>::bytes, x.Q, x.K, x.V,
           x.O, x.L, m, l, x.sizes);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 12,
    .name = "fa2_deferred_scaling",
    .title = "FA2: deferred scaling",
    .idea = "O travels unscaled and is divided by l once, at the end; L alone is left of m and l",
    .claim =
        "per row and tile: exponentials Bc+2R -> Bc+R, divisions 2R -> 0, multiplications on O 2d -> d",
    .before = 11,
    .supports = {.dtypes = fp32_only, .head_dims = fp32_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_12
