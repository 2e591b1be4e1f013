// Tuned: larger tiles, so that a warp has 32 rows and each fragment of K and V serves two products; K and V
// take turns at being copied, each while the other is used; powers of 2 whose scale is folded into one
// multiply-add; the blocks with the most tiles first.
#include "common/attention/gpu.hpp"
#include "common/ptx/exp2.hpp"

namespace flashladder::stage_19 {
namespace {

constexpr int row_lanes = 8, key_lanes = 4;

/// Where columns c ... c + 7 of row r lie in their row. A row of 64 numbers, 128 bytes, fills all banks,
/// and so do two of 32.
template <int d>
struct Swizzle {
  static_assert(d % 32 == 0);
  __device__ __forceinline__ int operator()(int r, int c) const {
    return d % 64 == 0 ? c ^ (r % 8 * 8) : c ^ (r / 2 % 4 * 8);
  }
};

/// Rows of a tile of Q, keys of a tile of K and V, warps of a block.
template <int Br_, int Bc_, int warps_>
struct Shape {
  static constexpr int Br = Br_, Bc = Bc_, warps = warps_;
};

template <class T, int d, class Tile>
__global__ void __launch_bounds__(32 * Tile::warps)
    fa2_forward(gmem<const T> Qg,  // [batch, q_heads, Nq, d]
                gmem<const T> Kg,  // [batch, kv_heads, Nk, d]
                gmem<const T> Vg,  // [batch, kv_heads, Nk, d]
                gmem<T> Og,        // [batch, q_heads, Nq, d]
                gmem<f32> Lg,      // [batch, q_heads, Nq]
                Sizes n) {
  constexpr int Br = Tile::Br, Bc = Tile::Bc, threads = 32 * Tile::warps;
  constexpr int warp_rows = Br / Tile::warps, M = warp_rows / 16;  // M fragments of 16 rows
  auto&& Q = dynamic_tile<T, Br, d, "Q">(0);
  auto&& K = dynamic_tile<T, Bc, d, "K">(2 * Br * d);
  auto&& V = dynamic_tile<T, Bc, d, "V">(2 * (Br + Bc) * d);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / key_lanes, t = lane % key_lanes;
  const int r0 = warp * warp_rows + g;  // its rows of a tile: r0 + 16 * f + a * row_lanes
  constexpr Swizzle<d> place;
  // Under the mask the last rows, which see the most keys, first, of all heads: no block has much left to
  // do when the others end. Without it head after head, whose K and V then stay in the L2 cache.
  const int Tr = tiles(n.Nq, Br), heads = gridDim.x / Tr, block = blockIdx.x;
  const int head = n.causal ? block % heads : block / Tr, h = head % n.q_heads, b = head / n.q_heads;
  const int i0 = (n.causal ? Tr - 1 - block / heads : block % Tr) * Br;
  const gmem<const T> Qh = Qg + n.Q.at(b, h);
  const gmem<const T> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const T> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<T> Oh = Og + n.O.at(b, h);
  const gmem<f32> Lh = Lg + n.row0(b, h);
  // exp(scale * s - scale * m) = 2^(s * scale2 - m * scale2), with the sign of the scale moved into Q.
  const float size = n.scale < 0 ? -n.scale : n.scale, scale2 = size * 1.4426950408889634f;
  const std::uint32_t sign = n.scale < 0 ? 0x80008000u : 0u;

  const int visible = n.visible_keys(i0 + Br - 1);  // to the last row, which sees the most
  load_tile_async<Br, d, threads>(Q, 0, Qh, n.Q.row, i0, n.Nq, place);
  if (visible > 0) load_tile_async<Bc, d, threads>(K, 0, Kh, n.K.row, 0, n.Nk, place);
  cp_async_commit();

  f32 m[M][2], l[M][2] = {}, o[M][d / 8][4] = {};  // of its rows, m before scaling; O~ as mma has it
#pragma unroll
  for (int f = 0; f < M; ++f) m[f][0] = m[f][1] = -INFINITY;
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    // lab: K's turn is over, V's begins: see that this tile of K has come, begin to bring V
    cp_async_wait<0>();
    __syncthreads();  // K is read, V changes: K's copies must have arrived, all warps have read the last V
    load_tile_async<Bc, d, threads>(V, 0, Vh, n.V.row, j0, n.Nk, place);
    cp_async_commit();
    // end of lab
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S = Q K^T
    f32 s[M][Bc / 8][4] = {};
#pragma unroll
    for (int k = 0; k < d; k += 16) {
      std::uint32_t q[M][4] = {};
#pragma unroll
      for (int f = 0; f < M; ++f) {
        const int row = warp * warp_rows + 16 * f + lane % 16, column = k + lane / 16 * 8;
        ldmatrix_x4<T>(q[f], Q.at(row, place(row, column)));
#pragma unroll
        for (int e = 0; e < 4; ++e) q[f][e] ^= sign;
      }
      // lab: the products for all M fragments of rows, with each fragment of K loaded once
#pragma unroll
      for (int c = 0; c < Bc / 8; c += 2) {
        const int row = 8 * c + lane % 8 + lane / 16 * 8, column = k + lane / 8 % 2 * 8;
        std::uint32_t key[4];
        ldmatrix_x4<T>(key, K.at(row, place(row, column)));
#pragma unroll
        for (int f = 0; f < M; ++f) {
          mma_m16n8k16<T>(s[f][c], q[f], {key[0], key[1]});
          mma_m16n8k16<T>(s[f][c + 1], q[f], {key[2], key[3]});
        }
      }
      // end of lab
    }
    // lab: V's turn is over, K's begins, if there is a next tile
    cp_async_wait<0>();
    __syncthreads();  // V is read, K changes: V's copies must have arrived, all warps have read K
    if (j0 + Bc < visible) load_tile_async<Bc, d, threads>(K, 0, Kh, n.K.row, j0 + Bc, n.Nk, place);
    cp_async_commit();
    // end of lab

#pragma unroll
    for (int f = 0; f < M; ++f) {
      if (masked) {
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * t + e % 2;
            if (j >= n.visible_keys(i)) s[f][c][e] = -INFINITY;
          }
        }
      }
      for (int c = 0; c < Bc / 8; ++c) {
        for (int e = 0; e < 4; ++e) {
          const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * t + e % 2;
          probe("S", n.head(b, h), i, j, static_cast<float>(s[f][c][e]) * size);
        }
      }
      // m_new = max(m, rowmax S), P~ = e^(S - m_new), l = e^(m - m_new) l + rowsum P~, of which each lane
      // keeps its own part
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        f32 m_tile = -INFINITY;
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) m_tile = fmaxf(m_tile, fmaxf(s[f][c][2 * a], s[f][c][2 * a + 1]));
        const f32 m_new = fmaxf(m[f][a], lanes_max<key_lanes>(m_tile));
        // lab: alpha, and P~ in place of S, as powers of 2; m, and l, of which each lane keeps its own part
        // given: const f32 alpha = 1.f;
        const f32 m_scaled = finite(m_new) * scale2;
        const f32 alpha = ex2_approx((m[f][a] - finite(m_new)) * scale2);  // exactly 1 where m stays
        f32 l_tile = 0.f;
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 2 * a; e < 2 * a + 2; ++e) {
            s[f][c][e] = ex2_approx(fmaf(s[f][c][e], scale2, -m_scaled));
            l_tile += s[f][c][e];
          }
        }
        l[f][a] = alpha * l[f][a] + l_tile;
        m[f][a] = m_new;
        // end of lab
        probe("m", n.head(b, h), i0 + r0 + 16 * f + a * row_lanes, j0, static_cast<float>(m_new) * size);
#pragma unroll
        for (int x = 0; x < d / 8; ++x) {
          o[f][x][2 * a] *= alpha;
          o[f][x][2 * a + 1] *= alpha;
        }
      }
    }

    // O~ = e^(m - m_new) O~ + P~ V
#pragma unroll
    for (int c = 0; c < Bc / 8; c += 2) {
      std::uint32_t p[M][4];
#pragma unroll
      for (int f = 0; f < M; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          p[f][e] = round_pair<T>(s[f][c + e / 2][e % 2 * 2], s[f][c + e / 2][e % 2 * 2 + 1]);
      }
      const int row = 8 * c + lane % 16;
#pragma unroll
      for (int x = 0; x < d / 8; x += 2) {
        const int column = 8 * x + lane / 16 * 8;
        std::uint32_t v[4];
        ldmatrix_x4_trans<T>(v, V.at(row, place(row, column)));
#pragma unroll
        for (int f = 0; f < M; ++f) {
          mma_m16n8k16<T>(o[f][x], p[f], {v[0], v[1]});
          mma_m16n8k16<T>(o[f][x + 1], p[f], {v[2], v[3]});
        }
      }
    }
  }

  // O = O~ / l, L = m + log l
#pragma unroll
  for (int f = 0; f < M; ++f) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int i = i0 + r0 + 16 * f + a * row_lanes;
      const f32 l_all = lanes_sum<key_lanes>(l[f][a]);
      const f32 inverse = 1.f / (l_all == 0.f ? f32(1.f) : l_all);  // a row that sees no key keeps O = 0
#pragma unroll
      for (int x = 0; x < d / 8; ++x) {
        const std::uint32_t o_all = round_pair<T>(o[f][x][2 * a] * inverse, o[f][x][2 * a + 1] * inverse);
        if (i < n.Nq) store_pair(Oh + (i * n.O.row + 8 * x + 2 * t), o_all);
      }
      if (t == 0 && i < n.Nq) Lh[i] = m[f][a] * size + logf(l_all);
    }
  }
}

/// The tile for each head dimension.
template <int d>
using TileFor = std::conditional_t<(d <= 64), Shape<128, 128, 4>,
                                   std::conditional_t<(d <= 128), Shape<128, 64, 4>, Shape<128, 128, 8>>>;

void forward(const Forward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const ForwardBuffers<T> x(f);
    for_head_dim<32, 64, 96, 128, 256>(f.problem.d, [&](auto d) {
      using Tile = TileFor<d>;
      launch("fa2_forward", fa2_forward<T, d, Tile>, tiles(f.problem.Nq, Tile::Br) * x.heads * x.batch,
             32 * Tile::warps, 2 * (Tile::Br + 2 * Tile::Bc) * d, x.Q, x.K, x.V, x.O, x.L, x.sizes);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 19,
    .name = "tuned",
    .title = "tuned",
    .idea = "32 rows a warp, K and V copied in turns, exponentials to base 2, longest blocks first",
    .claim =
        "shared bytes of K and V read for a row and tile halved for d <= 128; wavefronts / ideal stays "
        "1.00",
    .before = 18,
    .supports = {.dtypes = half_dtypes, .head_dims = half_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_19
