// Base 2: exponentials are powers of 2, one instruction each, and the scale and log2(e) go into one fused
// multiply-add with the maximum. S itself stays unscaled.
#include "common/kernel/host.hpp"
#include "common/kernel/swizzle.hpp"
#include "common/ptx/exp2.hpp"

namespace flashladder::stage_24 {
namespace {

constexpr int Bc = 32;  // keys of a tile of K and V
constexpr int warps = 4, threads = 32 * warps;

// Split-Q: a warp takes one or two fragments of 16 rows and all keys of a tile, as mma.m16n8k16 assigns
// them: the four lanes of a quad have rows quad and quad + 8 of a fragment, each columns 2 quad_lane and
// 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 8, key_lanes = 4;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

/// What a block works on. O~ of a fragment takes d / 2 of the 255 registers of a thread.
template <int d>
struct Tile {
  static constexpr int row_frags = d <= 128 ? 2 : 1;  // of a warp
  static constexpr int Br = 16 * warps * row_frags;   // rows of a tile of Q
};

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int tile = 2 * Bc * d;  // of K or V
  static constexpr int Q = 0, K = Q + 2 * Tile<d>::Br * d, V = K + 2 * tile, bytes = V + 2 * tile;
};

template <class T, int d>
__global__ void __launch_bounds__(threads) fa2_forward(gmem<const T> Qg,  // [batch, q_heads, Nq, d]
                                                       gmem<const T> Kg,  // [batch, kv_heads, Nk, d]
                                                       gmem<const T> Vg,  // [batch, kv_heads, Nk, d]
                                                       gmem<T> Og,        // [batch, q_heads, Nq, d]
                                                       gmem<f32> Lg,      // [batch, q_heads, Nq]
                                                       Sizes n) {
  constexpr int row_frags = Tile<d>::row_frags, warp_rows = 16 * row_frags, Br = Tile<d>::Br;
  auto&& Q = dynamic_tile<T, Br, d, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<T, 2 * Bc, d, "K">(Shared<d>::K);  // two buffers of Bc keys
  auto&& V = dynamic_tile<T, 2 * Bc, d, "V">(Shared<d>::V);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / key_lanes,
            quad_lane = lane % key_lanes;
  const int r0 = warp * warp_rows + quad;  // its rows of a tile: r0 + 16 * f + a * row_lanes
  constexpr Swizzle<d> swizzle;
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const T> Qh = Qg + n.Q.at(b, h);
  const gmem<const T> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const T> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<T> Oh = Og + n.O.at(b, h);
  const gmem<f32> Lh = Lg + n.row0(b, h);
  // exp(scale * s - scale * m) = 2^(s * scale_log2 - m * scale_log2). The scale's sign is moved into Q.
  const float abs_scale = n.scale < 0 ? -n.scale : n.scale, scale_log2 = abs_scale * log2_e;

  load_tile_async<Br, d, threads>(Q, 0, Qh, n.Q.row, i0, n.Nq, swizzle);
  const int visible = n.visible_keys(i0 + Br - 1);  // to the last row, which sees the most
  if (visible > 0) {
    load_tile_async<Bc, d, threads>(K, 0, Kh, n.K.row, 0, n.Nk, swizzle);
    load_tile_async<Bc, d, threads>(V, 0, Vh, n.V.row, 0, n.Nk, swizzle);
  }
  cp_async_commit();
  // lab: where the scale is negative, Q = -Q
  if (n.scale < 0.f) {
    cp_async_wait<0>();
    __syncthreads();  // Q changes: the copies of all threads must have arrived
    for (int e = threadIdx.x; e < Br * d; e += threads) Q[e] = T(-static_cast<f32>(static_cast<T>(Q[e])));
  }
  // end of lab
  f32 m[row_frags][2], l[row_frags][2] = {};  // of its rows, m in powers of 2
  f32 O_frag[row_frags][d / 8][4] = {};       // O~ as mma has it
#pragma unroll
  for (int f = 0; f < row_frags; ++f) m[f][0] = m[f][1] = -INFINITY;
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    const int now = j0 / Bc % 2 * Bc, next = Bc - now;  // where the buffers begin
    if (j0 + Bc < visible) {
      load_tile_async<Bc, d, threads>(K, next, Kh, n.K.row, j0 + Bc, n.Nk, swizzle);
      load_tile_async<Bc, d, threads>(V, next, Vh, n.V.row, j0 + Bc, n.Nk, swizzle);
    }
    cp_async_commit();
    cp_async_wait<1>();  // all but the copies just begun
    __syncthreads();     // Q, K and V are read: the copies of all threads must have arrived
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

      // m_new = max(m, scale_log2 rowmax S), P~ = 2^(scale_log2 S - m_new), l = 2^(m - m_new) l + rowsum
      // P~: over the lanes that share a row
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        f32 m_tile = -INFINITY;
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c)
          m_tile = fmaxf(m_tile, fmaxf(S_frag[f][c][2 * a], S_frag[f][c][2 * a + 1]));
        // lab: m_new, P~ in place of S, their sum l_tile, and alpha, all by powers of 2
        // given: const f32 m_new = m_tile, l_tile = 0.f, alpha = 0.f;
        const f32 m_new = fmaxf(m[f][a], lanes_max<key_lanes>(m_tile) * scale_log2);
        f32 l_tile = 0.f;
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 2 * a; e < 2 * a + 2; ++e) {
            S_frag[f][c][e] = ex2_approx(fmaf(S_frag[f][c][e], scale_log2, -finite(m_new)));
            l_tile += S_frag[f][c][e];
          }
        }
        const f32 alpha = ex2_approx(m[f][a] - finite(m_new));
        // end of lab
        l[f][a] = alpha * l[f][a] + lanes_sum<key_lanes>(l_tile);
        m[f][a] = m_new;
#pragma unroll
        for (int x = 0; x < d / 8; ++x) {
          O_frag[f][x][2 * a] *= alpha;
          O_frag[f][x][2 * a + 1] *= alpha;
        }
        probe("m", n.head(b, h), i0 + r0 + 16 * f + a * row_lanes, j0, m[f][a], ln_2);
        probe("l", n.head(b, h), i0 + r0 + 16 * f + a * row_lanes, j0, l[f][a]);
      }
    }

    // O~ = 2^(m - m_new) O~ + P~ V
#pragma unroll
    for (int c = 0; c < Bc / 8; c += 2) {
      std::uint32_t P_frag[row_frags][4];
#pragma unroll
      for (int f = 0; f < row_frags; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int a = e % 2;
          P_frag[f][e] = round_pair<T>(S_frag[f][c + e / 2][2 * a], S_frag[f][c + e / 2][2 * a + 1]);
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
        for (int x = 0; x < d / 8; ++x)
          probe("O~", n.head(b, h), i, 8 * x + 2 * quad_lane + e % 2, O_frag[f][x][e]);
      }
    }
    __syncthreads();  // this pair of buffers changes: all warps have read it
  }

  // O = O~ / l, L = m + log l
#pragma unroll
  for (int f = 0; f < row_frags; ++f) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int i = i0 + r0 + 16 * f + a * row_lanes;
      const f32 inverse =
          1.f / (l[f][a] == 0.f ? f32(1.f) : l[f][a]);  // a row that sees no key keeps O = 0
#pragma unroll
      for (int x = 0; x < d / 8; ++x) {
        const std::uint32_t o_all =
            round_pair<T>(O_frag[f][x][2 * a] * inverse, O_frag[f][x][2 * a + 1] * inverse);
        if (i < n.Nq) store_pair(Oh + (i * n.O.row + 8 * x + 2 * quad_lane), o_all);
      }
      if (quad_lane == 0 && i < n.Nq) Lh[i] = m[f][a] * ln_2 + logf(l[f][a]);
    }
  }
}

void forward(const Forward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const ForwardBuffers<T> x(f);
    for_head_dim<T, 32, 64, 96, 128, 256>(f.problem.d, [&](auto d) {
      launch("fa2_forward", fa2_forward<T, d>, dim3(tiles(f.problem.Nq, Tile<d>::Br), x.heads, x.batch),
             threads, Shared<d>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 24,
    .name = "base_2",
    .title = "base 2",
    .idea = "powers of 2, one instruction each; scale and log2(e) in one multiply-add with the maximum",
    .claim =
        "per score: a multiplication, a subtraction and an exponential to base e -> a fused multiply-add "
        "and one to base 2",
    .before = 23,
    .supports = {.dtypes = half_dtypes, .head_dims = half_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_24
