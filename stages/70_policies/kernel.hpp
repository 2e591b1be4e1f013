#pragma once
// The kernel of stages 70 to 81; attention.cu beside it explains its idea. Run-time compilation includes
// this file too, so it takes no header of the host. Its namespace has no name: one program may hold the
// kernel several times, for the emulator and for a GPU.
#include "common/kernel/device.hpp"
#include "common/kernel/swizzle.hpp"
#include "common/ptx/exp2.hpp"
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_70 {
namespace {

// Split-Q: a warp takes one or two fragments of 16 rows and all keys of a tile, as mma.m16n8k16 assigns
// them: the four lanes of a quad have rows quad and quad + 8 of a fragment, each columns 2 quad_lane and
// 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 8, key_lanes = 4;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
constexpr float most_growth = 8;  // of a row's maximum over its m, in powers of 2: P~ is at most 2^8

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d, int Br, int Bc, int num_buffers>
struct Shared {
  static constexpr int tiles = 2 * num_buffers * Bc * d;  // of K or V
  static constexpr int Q = 0, K = Q + 2 * Br * d, V = K + tiles, bytes = V + tiles;
};

/// S begins with what the policy adds to it.
template <class Policy, int row_frags, int chunks>
__device__ __forceinline__ void begin_with_bias(
    f32 (&S)[row_frags][chunks][4],  // [16 * row_frags, 8 * chunks]
    const Policy& policy, const typename Policy::Head& head, int i,
    int j) {  // this lane's first row and key
  const bool whole = policy.has_number(head, {i, j, 16 * row_frags - row_lanes, 8 * chunks - 7});
  if (whole && policy.has_pairs()) {
#pragma unroll
    for (int f = 0; f < row_frags; ++f) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
#pragma unroll
        for (int a = 0; a < 2; ++a) {
          const float2 pair = policy.pair(head, {i, j, 16 * f + a * row_lanes, 8 * c});
          S[f][c][2 * a] = pair.x, S[f][c][2 * a + 1] = pair.y;
        }
      }
    }
  } else {
#pragma unroll
    for (int f = 0; f < row_frags; ++f) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const Element at = {i, j, 16 * f + e / 2 * row_lanes, 8 * c + e % 2};
          S[f][c][e] = policy.has_number(head, at) ? policy.number(head, at) : f32(0.f);
        }
      }
    }
  }
#pragma unroll
  for (int f = 0; f < row_frags; ++f) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[f][c][e] = policy.over_scale(S[f][c][e]);
    }
  }
}

template <class T, class Policy, int d, int Br, int Bc, int warps, int num_buffers, int unroll>
__global__ void __launch_bounds__(32 * warps) fa2_forward(
    gmem<const T> Qg,  // [batch, q_heads, Nq, columns]
    gmem<const T> Kg,  // [batch, kv_heads, Nk, columns]
    gmem<const T> Vg,  // [batch, kv_heads, Nk, columns]
    gmem<T> Og,        // [batch, q_heads, Nq, columns]
    gmem<f32> Lg,      // [batch, q_heads, Nq]
    Sizes n,
    int columns,      // the head dimension, at most d; in the tiles zeros follow
    Policy policy) {  // what is not plain attention: which keys a row sees, what a score becomes
  constexpr int threads = 32 * warps, warp_rows = Br / warps, row_frags = warp_rows / 16;
  using At = Shared<d, Br, Bc, num_buffers>;
  auto&& Q = dynamic_tile<T, Br, d, "Q">(At::Q);
  auto&& K = dynamic_tile<T, num_buffers * Bc, d, "K">(At::K);
  auto&& V = dynamic_tile<T, num_buffers * Bc, d, "V">(At::V);
  n.causal = Policy::causal;  // known when this is compiled

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / key_lanes,
            quad_lane = lane % key_lanes;
  const int r0 = warp * warp_rows + quad;  // its rows of a tile: r0 + 16 * f + a * row_lanes
  constexpr Swizzle<d> swizzle;
  // The last rows first, of all heads, where they see the most keys: no block has much left to do when the
  // others end. Else head after head: its K and V then stay in the L2 cache.
  constexpr bool causal = Policy::causal;
  const int h = causal ? blockIdx.x : blockIdx.y, b = causal ? blockIdx.y : blockIdx.z;
  const unsigned tile = causal ? gridDim.z - 1 - blockIdx.z : blockIdx.x;
  const int all_rows = n.Nq;
  const Part part = policy.sequences().of_row(n, b, tile * Br, Br);
  const int i0 = part.first;
  if (Policy::Sequences::packed && i0 >= n.Nq) return;  // more blocks are launched than there are tiles
  const gmem<const T> Qh = Qg + (n.Q.at(b, h) + part.row0 * n.Q.row);
  const gmem<const T> Kh = Kg + (n.K.at(b, n.kv_head(h)) + part.key0 * n.K.row);
  const gmem<const T> Vh = Vg + (n.V.at(b, n.kv_head(h)) + part.key0 * n.V.row);
  // exp(scale * s - scale * m) = 2^(s * scale_log2 - m * scale_log2). The scale's sign is moved into Q.
  // Where the policy changes scores, it has multiplied them with the scale.
  const float abs_scale = n.scale < 0 ? -n.scale : n.scale;
  const float unit = Policy::changes_scores ? 1.f : abs_scale, scale_log2 = unit * log2_e;

  const typename Policy::Head head = policy.head(n, part.entry, h);

  const auto bring_K = [&](int j0, int to) {
    load_tile_async<Bc, d, threads>(K, to, Kh, n.K.row, j0, n.Nk, swizzle, columns);
  };
  const auto bring_V = [&](int j0, int to) {
    load_tile_async<Bc, d, threads>(V, to, Vh, n.V.row, j0, n.Nk, swizzle, columns);
  };

  // The copies that come before the first tile: Q and K_0, with two buffers V_0 too.
  typename Policy::LiveTiles live = policy.live_keys(head, i0);
  const int visible = policy.keys_end(n, i0 + Br - 1);  // to the last row, which sees the last
  const int begin = live.next(policy.keys_first(n, i0) / Bc * Bc, visible);  // the first row sees the first
  load_tile_async<Br, d, threads>(Q, 0, Qh, n.Q.row, i0, n.Nq, swizzle, columns);
  if (begin < visible) {
    const int first = begin / Bc % num_buffers * Bc;
    bring_K(begin, first);
    if (num_buffers == 2) bring_V(begin, first);
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
  for (int f = 0; f < row_frags; ++f) {
    m[f][0] = m[f][1] = -INFINITY;
    if (Policy::has_sink) {  // as if it were a key before all others, with V = 0
      m[f][0] = m[f][1] = policy.sink(head) * log2_e;
      if (quad_lane == 0) l[f][0] = l[f][1] = 1.f;
    }
  }
  int turn = begin / Bc, next_j0;
  for (int j0 = begin; j0 < visible; j0 = next_j0, ++turn) {
    next_j0 = live.next(j0 + Bc, visible);
    // Where tiles lie: they take turns, by their numbers where none is skipped.
    const int now = (Policy::skips_tiles ? turn : j0 / Bc) % num_buffers * Bc,
              next = (Policy::skips_tiles ? turn + 1 : next_j0 / Bc) % num_buffers * Bc;
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
    // What the first row sees ends first, and what the last one sees begins last.
    const int last = i0 + Br < n.Nq ? i0 + Br - 1 : n.Nq - 1;
    const bool ends = j0 + Bc > policy.keys_end(n, i0),
               begins = Policy::begins_later && j0 < policy.keys_first(n, last);
    count_tile(ends || begins);

    // S = Q K^T
    f32 S_frag[row_frags][Bc / 8][4] = {};
    if (Policy::has_bias && policy.has_numbers())
      stage_70::begin_with_bias(S_frag, policy, head, i0 + r0, j0 + 2 * quad_lane);
#pragma unroll unroll
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
      if (Policy::changes_scores) {
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const Element at = {i0 + r0, j0 + 2 * quad_lane, 16 * f + e / 2 * row_lanes, 8 * c + e % 2};
            S_frag[f][c][e] = policy.score(S_frag[f][c][e] * abs_scale, head, at);
          }
        }
      }
      if (ends) {
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
            if (j >= policy.keys_end(n, i)) S_frag[f][c][e] = -INFINITY;
          }
        }
      }
      if (begins) {
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
            if (j < policy.keys_first(n, i)) S_frag[f][c][e] = -INFINITY;
          }
        }
      }
      for (int c = 0; c < Bc / 8; ++c) {
        for (int e = 0; e < 4; ++e) {
          const int i = i0 + r0 + 16 * f + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
          probe("S", n.head(b, h), part.row0 + i, part.key0 + j, S_frag[f][c][e], unit);
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
          m[f][a] = Policy::begins_later ? m_new : finite(m_new);
        }
      }
    }

    // P~ = 2^(scale_log2 S - m), l += rowsum P~, of which each lane keeps its own part, and O~ += P~ V, for
    // 16 keys at a time
    Words bytes[row_frags];  // for 32 keys
#pragma unroll
    for (int c = 0; c < Bc / 8; c += 2) {
      std::uint32_t P_frag[row_frags][4];
#pragma unroll
      for (int f = 0; f < row_frags; ++f) {
        if (Policy::drops && c % 4 == 0)
          bytes[f] = policy.bytes(head, i0 + r0 + 16 * f, j0 + 8 * c + 2 * quad_lane);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int a = e % 2;
          f32 p0 = ex2_approx(fmaf(S_frag[f][c + e / 2][2 * a], scale_log2, -subtracted<Policy>(m[f][a])));
          f32 p1 =
              ex2_approx(fmaf(S_frag[f][c + e / 2][2 * a + 1], scale_log2, -subtracted<Policy>(m[f][a])));
          l[f][a] += p0 + p1;
          if (Policy::drops) {
            const int i = i0 + r0 + 16 * f + a * row_lanes, j = j0 + 8 * (c + e / 2) + 2 * quad_lane;
            if (!policy.stays(bytes[f], i, j)) p0 = 0.f;
            if (!policy.stays(bytes[f], i, j + 1)) p1 = 0.f;
          }
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
        const int i = part.row0 + i0 + r0 + 16 * f + e / 2 * row_lanes;
        if (e % 2 == 0) probe("m~", n.head(b, h), i, part.key0 + j0, m[f][e / 2], ln_2);
        for (int x = 0; x < d / 8; ++x)
          probe("O~", n.head(b, h), i, 8 * x + 2 * quad_lane + e % 2, O_frag[f][x][e], policy.rescale());
      }
    }
  }

  // O = O~ / l, L = m + log l. O goes to the place of this warp's rows of Q, and from there to memory 16
  // bytes a lane, whole rows at a time.
  if (begin == visible) {
    cp_async_wait<0>();
    __syncthreads();  // Q changes, and no tile has waited for the copies of Q
  }
  __syncwarp();  // Q changes: all lanes of the warp, which alone reads these rows, must have read it
  const gmem<T> Oh = Og + (n.O.at(b, h) + part.row0 * n.O.row);
  const gmem<f32> Lh = Lg + (n.head(b, h) * all_rows + part.row0);
#pragma unroll
  for (int f = 0; f < row_frags; ++f) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int r = r0 + 16 * f + a * row_lanes, i = i0 + r;
      const f32 l_all = lanes_sum<key_lanes>(l[f][a]);
      probe("l", n.head(b, h), part.row0 + i, part.key0 + n.Nk - 1, l_all);
      f32 inverse = 1.f / (l_all == 0.f ? f32(1.f) : l_all);  // a row that sees no key keeps O = 0
      if (Policy::drops) inverse *= policy.rescale();
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
}

}  // namespace
}  // namespace flashladder::stage_70
