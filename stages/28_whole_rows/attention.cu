// Whole rows: O leaves as Q, K and V come, in chunks of 8 columns, 16 bytes a lane and row after row. Then
// a row may end after any chunk: the kernel for the next larger d serves every multiple of 8, with zeros in
// the columns that are too many.
#include <array>

#include "common/kernel/host.hpp"
#include "common/kernel/swizzle.hpp"
#include "common/ptx/exp2.hpp"

namespace flashladder::stage_28 {
namespace {

constexpr int Bc = 32;  // keys of a tile of K and V
constexpr int warps = 4, threads = 32 * warps;

// Split-Q: a warp takes one or two fragments of 16 rows and all keys of a tile, as mma.m16n8k16 assigns
// them: the four lanes of a quad have rows quad and quad + 8 of a fragment, each columns 2 quad_lane and
// 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 8, key_lanes = 4;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
constexpr float most_growth = 8;  // of a row's maximum over its m, in powers of 2: P~ is at most 2^8

/// What a block works on. O~ of a fragment takes d / 2 of the 255 registers of a thread.
template <int d>
struct Tile {
  static constexpr int row_frags = d <= 128 ? 2 : 1;    // of a warp
  static constexpr int Br = 16 * warps * row_frags;     // rows of a tile of Q
  static constexpr int num_buffers = d <= 128 ? 2 : 1;  // of K, and of V
};

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int tiles = 2 * Tile<d>::num_buffers * Bc * d;  // of K or V
  static constexpr int Q = 0, K = Q + 2 * Tile<d>::Br * d, V = K + tiles, bytes = V + tiles;
};

template <class T, int d>
__global__ void __launch_bounds__(threads)
    fa2_forward(gmem<const T> Qg,  // [batch, q_heads, Nq, columns]
                gmem<const T> Kg,  // [batch, kv_heads, Nk, columns]
                gmem<const T> Vg,  // [batch, kv_heads, Nk, columns]
                gmem<T> Og,        // [batch, q_heads, Nq, columns]
                gmem<f32> Lg,      // [batch, q_heads, Nq]
                Sizes n,
                int columns) {  // the head dimension, at most d; in the tiles zeros follow
  constexpr int num_buffers = Tile<d>::num_buffers;
  constexpr int row_frags = Tile<d>::row_frags, warp_rows = 16 * row_frags, Br = Tile<d>::Br;
  auto&& Q = dynamic_tile<T, Br, d, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<T, num_buffers * Bc, d, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<T, num_buffers * Bc, d, "V">(Shared<d>::V);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / key_lanes,
            quad_lane = lane % key_lanes;
  const int r0 = warp * warp_rows + quad;  // its rows of a tile: r0 + 16 * f + a * row_lanes
  constexpr Swizzle<d> swizzle;
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const T> Qh = Qg + n.Q.at(b, h);
  const gmem<const T> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const T> Vh = Vg + n.V.at(b, n.kv_head(h));
  // exp(scale * s - scale * m) = 2^(s * scale_log2 - m * scale_log2). The scale's sign is moved into Q.
  const float abs_scale = n.scale < 0 ? -n.scale : n.scale, scale_log2 = abs_scale * log2_e;

  const auto bring_K = [&](int j0, int to) {
    load_tile_async<Bc, d, threads>(K, to, Kh, n.K.row, j0, n.Nk, swizzle, columns);
  };
  const auto bring_V = [&](int j0, int to) {
    load_tile_async<Bc, d, threads>(V, to, Vh, n.V.row, j0, n.Nk, swizzle, columns);
  };

  // The copies that come before the first tile: Q and K_0, with two buffers V_0 too.
  const int visible = n.visible_keys(i0 + Br - 1);  // to the last row, which sees the most
  load_tile_async<Br, d, threads>(Q, 0, Qh, n.Q.row, i0, n.Nq, swizzle, columns);
  if (visible > 0) {
    bring_K(0, 0);
    if (num_buffers == 2) bring_V(0, 0);
  }
  cp_async_commit();
  if (n.scale < 0.f) {
    cp_async_wait<0>();
    __syncthreads();  // Q changes: the copies of all threads must have arrived
    for (int e = threadIdx.x; e < Br * d; e += threads) Q[e] = T(-static_cast<f32>(static_cast<T>(Q[e])));
  }
  f32 m[row_frags][2], l[row_frags][2] = {};  // of its rows, m in powers of 2
  f32 O_frag[row_frags][d / 8][4] = {};       // O~ as mma has it
#pragma unroll
  for (int f = 0; f < row_frags; ++f) m[f][0] = m[f][1] = -INFINITY;
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    const int now = j0 / Bc % num_buffers * Bc, next_j0 = j0 + Bc,
              next = next_j0 / Bc % num_buffers * Bc;  // where tiles lie
    cp_async_wait<0>();
    __syncthreads();  // K (with two buffers V too) is read: its copies must have arrived. V of the tile
                      // before (with two buffers K too) changes: all warps must have read it
    if (num_buffers == 1) {
      bring_V(j0, now);
    } else if (next_j0 < visible) {
      bring_K(next_j0, next);
      bring_V(next_j0, next);
    }
    cp_async_commit();
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S = Q K^T
    f32 S_frag[row_frags][Bc / 8][4] = {};
#pragma unroll
    for (int k = 0; k < d; k += 16) {
      std::uint32_t Q_frag[row_frags][4];
#pragma unroll
      for (int f = 0; f < row_frags; ++f) {
        const int row = warp * warp_rows + 16 * f + lane % 16, column = k + lane / 16 * 8;
        ldmatrix_x4<T>(Q_frag[f], Q.at(row, swizzle(row, column)));
      }
#pragma unroll
      for (int c = 0; c < Bc / 8; c += 2) {
        const int row = 8 * c + lane % 8 + lane / 16 * 8, column = k + lane / 8 % 2 * 8;
        std::uint32_t K_frag[4];
        ldmatrix_x4<T>(K_frag, K.at(now + row, swizzle(row, column)));
#pragma unroll
        for (int f = 0; f < row_frags; ++f) {
          mma_m16n8k16<T>(S_frag[f][c], Q_frag[f], {K_frag[0], K_frag[1]});
          mma_m16n8k16<T>(S_frag[f][c + 1], Q_frag[f], {K_frag[2], K_frag[3]});
        }
      }
    }
    if (num_buffers == 1) {
      cp_async_wait<0>();
      __syncthreads();  // V is read, K changes: V's copies must have arrived, all warps have read K
      if (next_j0 < visible) bring_K(next_j0, next);
      cp_async_commit();
    }
#pragma unroll
    for (int f = 0; f < row_frags; ++f) {
      if (masked) {
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
            if (j >= n.visible_keys(i)) S_frag[f][c][e] = -INFINITY;
          }
        }
      }
      for (int c = 0; c < Bc / 8; ++c) {
        for (int e = 0; e < 4; ++e) {
          const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
          probe("S", n.head(b, h), i, j, S_frag[f][c][e], abs_scale);
        }
      }

      // m = scale_log2 rowmax S where the old m is too small
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        f32 m_tile = -INFINITY;
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c)
          m_tile = fmaxf(m_tile, fmaxf(S_frag[f][c][2 * a], S_frag[f][c][2 * a + 1]));
        m_tile = lanes_max<key_lanes>(m_tile);
        const f32 m_new = m_tile * scale_log2;
        if (!(m_new - m[f][a] <= most_growth)) {  // in the first tile, too: m is -infinity
          const f32 alpha = ex2_approx(m[f][a] - finite(m_new));
          l[f][a] *= alpha;
#pragma unroll
          for (int x = 0; x < d / 8; ++x) {
            O_frag[f][x][2 * a] *= alpha;
            O_frag[f][x][2 * a + 1] *= alpha;
          }
          m[f][a] = finite(m_new);
        }
      }
    }

    // P~ = 2^(scale_log2 S - m), l += rowsum P~, of which each lane keeps its own part, and O~ += P~ V, for
    // 16 keys at a time
#pragma unroll
    for (int c = 0; c < Bc / 8; c += 2) {
      std::uint32_t P_frag[row_frags][4];
#pragma unroll
      for (int f = 0; f < row_frags; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int a = e % 2;
          const f32 p0 = ex2_approx(fmaf(S_frag[f][c + e / 2][2 * a], scale_log2, -m[f][a]));
          const f32 p1 = ex2_approx(fmaf(S_frag[f][c + e / 2][2 * a + 1], scale_log2, -m[f][a]));
          l[f][a] += p0 + p1;
          P_frag[f][e] = round_pair<T>(p0, p1);
        }
      }
      const int row = 8 * c + lane % 16;
#pragma unroll
      for (int x = 0; x < d / 8; x += 2) {
        const int column = 8 * x + lane / 16 * 8;
        std::uint32_t V_frag[4];
        ldmatrix_x4_trans<T>(V_frag, V.at(now + row, swizzle(row, column)));
#pragma unroll
        for (int f = 0; f < row_frags; ++f) {
          mma_m16n8k16<T>(O_frag[f][x], P_frag[f], {V_frag[0], V_frag[1]});
          mma_m16n8k16<T>(O_frag[f][x + 1], P_frag[f], {V_frag[2], V_frag[3]});
        }
      }
    }
    for (int f = 0; f < row_frags; ++f) {
      for (int e = 0; e < 4; ++e) {
        const int i = i0 + r0 + 16 * f + e / 2 * row_lanes;
        if (e % 2 == 0) probe("m~", n.head(b, h), i, j0, m[f][e / 2], ln_2);
        for (int x = 0; x < d / 8; ++x)
          probe("O~", n.head(b, h), i, 8 * x + 2 * quad_lane + e % 2, O_frag[f][x][e]);
      }
    }
  }

  // O = O~ / l, L = m + log l. O goes to the place of this warp's rows of Q, and from there to memory 16
  // bytes a lane, whole rows at a time.
  if (visible == 0) {
    cp_async_wait<0>();
    __syncthreads();  // Q changes, and no tile has waited for the copies of Q
  }
  // lab: O to the place of this warp's rows of Q, and from there to memory
  __syncwarp();  // Q changes: all lanes of the warp, which alone reads these rows, must have read it
  const gmem<T> Oh = Og + n.O.at(b, h);
  const gmem<f32> Lh = Lg + n.row0(b, h);
#pragma unroll
  for (int f = 0; f < row_frags; ++f) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int r = r0 + 16 * f + a * row_lanes, i = i0 + r;
      const f32 l_all = lanes_sum<key_lanes>(l[f][a]);
      probe("l", n.head(b, h), i, n.Nk - 1, l_all);
      const f32 inverse = 1.f / (l_all == 0.f ? f32(1.f) : l_all);  // a row that sees no key keeps O = 0
#pragma unroll
      for (int x = 0; x < d / 8; ++x)
        store_pair(Q.at(r, swizzle(r, 8 * x) + 2 * quad_lane),
                   round_pair<T>(O_frag[f][x][2 * a] * inverse, O_frag[f][x][2 * a + 1] * inverse));
      if (quad_lane == 0 && i < n.Nq) Lh[i] = m[f][a] * ln_2 + logf(l_all);
    }
  }
  __syncwarp();  // each row of O is read by lanes that have not written it: all must have
#pragma unroll 4
  for (int e = lane; e < warp_rows * (d / 8); e += 32) {
    const int r = warp * warp_rows + e / (d / 8), i = i0 + r, c = e % (d / 8) * 8;
    store_16B<T>(Oh + (i * n.O.row + c), Q.at(r, swizzle(r, c)), i < n.Nq && c < columns);
  }
  // end of lab
}

constexpr auto head_dims = [] {  // all multiples of 8
  std::array<std::int64_t, 256 / 8> all;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = 8 * (static_cast<std::int64_t>(i) + 1);
  return all;
}();

void forward(const Forward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const ForwardBuffers<T> x(f);
    for_head_dim<T, 32, 64, 96, 128, 192, 256>(f.problem.d, [&](auto d) {
      launch("fa2_forward", fa2_forward<T, d>, dim3(tiles(f.problem.Nq, Tile<d>::Br), x.heads, x.batch),
             threads, Shared<d>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes, static_cast<int>(f.problem.d));
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 28,
    .name = "whole_rows",
    .title = "whole rows",
    .idea =
        "O leaves in whole rows, 16 bytes a lane, as Q, K and V come; so the head dimension may be any "
        "multiple of 8",
    .claim = "sectors of O written / ideal 2 -> 1; head dimensions 5 -> 32",
    .before = 27,
    .supports = {.dtypes = half_dtypes, .head_dims = head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_28
