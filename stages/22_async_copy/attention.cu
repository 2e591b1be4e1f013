// Asynchronous copies: cp.async brings the next tile of K and V into a second pair of buffers while the
// tensor cores work on the first.
#include "common/kernel/host.hpp"
#include "common/kernel/swizzle.hpp"

namespace flashladder::stage_22 {
namespace {

constexpr int Br = 64, Bc = 32;  // rows of a tile of Q, keys of a tile of K and V
constexpr int warps = 4, threads = 32 * warps;

// Split-Q: a warp takes 16 rows of a tile and all of its keys, as mma.m16n8k16 assigns them: the four lanes
// of a quad have rows quad and quad + 8, each columns 2 quad_lane and 2 quad_lane + 1 of every 8.
constexpr int warp_rows = Br / warps;
constexpr int row_lanes = 8, key_lanes = 4;
constexpr int thread_rows = warp_rows / row_lanes;  // of a thread

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int tile = 2 * Bc * d;  // of K or V; Q takes twice as much
  static constexpr int Q = 0, K = Q + 2 * tile, V = K + 2 * tile, bytes = V + 2 * tile;
};

template <class T, int d>
__global__ void __launch_bounds__(threads) fa2_forward(gmem<const T> Qg,  // [batch, q_heads, Nq, d]
                                                       gmem<const T> Kg,  // [batch, kv_heads, Nk, d]
                                                       gmem<const T> Vg,  // [batch, kv_heads, Nk, d]
                                                       gmem<T> Og,        // [batch, q_heads, Nq, d]
                                                       gmem<f32> Lg,      // [batch, q_heads, Nq]
                                                       Sizes n) {
  auto&& Q = dynamic_tile<T, Br, d, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<T, 2 * Bc, d, "K">(Shared<d>::K);  // two buffers of Bc keys
  auto&& V = dynamic_tile<T, 2 * Bc, d, "V">(Shared<d>::V);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / key_lanes,
            quad_lane = lane % key_lanes;
  const int r0 = warp * warp_rows + quad;  // its rows of a tile: r0 + a * row_lanes
  constexpr Swizzle<d> swizzle;
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const T> Qh = Qg + n.Q.at(b, h);
  const gmem<const T> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const T> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<T> Oh = Og + n.O.at(b, h);
  const gmem<f32> Lh = Lg + n.row0(b, h);

  load_tile_async<Br, d, threads>(Q, 0, Qh, n.Q.row, i0, n.Nq, swizzle);
  const int visible = n.visible_keys(i0 + Br - 1);  // to the last row, which sees the most
  // lab: begin to copy the first tile of K and V, if there is one; with Q, one group of copies
  if (visible > 0) {
    load_tile_async<Bc, d, threads>(K, 0, Kh, n.K.row, 0, n.Nk, swizzle);
    load_tile_async<Bc, d, threads>(V, 0, Vh, n.V.row, 0, n.Nk, swizzle);
  }
  cp_async_commit();
  // end of lab
  f32 m[thread_rows], l[thread_rows] = {}, O_frag[d / 8][4] = {};  // of its rows; O~ as mma has it
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) m[a] = -INFINITY;
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    // lab: begin to copy the next tile, if there is one, and make sure that this one is there; `now` is
    //   where this tile begins in K and in V
    // given: const int now = 0;
    const int now = j0 / Bc % 2 * Bc, next = Bc - now;  // where the buffers begin
    if (j0 + Bc < visible) {
      load_tile_async<Bc, d, threads>(K, next, Kh, n.K.row, j0 + Bc, n.Nk, swizzle);
      load_tile_async<Bc, d, threads>(V, next, Vh, n.V.row, j0 + Bc, n.Nk, swizzle);
    }
    cp_async_commit();
    cp_async_wait<1>();  // all but the copies just begun
    __syncthreads();     // Q, K and V are read: the copies of all threads must have arrived
    // end of lab
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S = scale * Q K^T
    f32 S_frag[Bc / 8][4] = {};
#pragma unroll
    for (int k = 0; k < d; k += 16) {
      const int q_row = warp * warp_rows + lane % 16, q_column = k + lane / 16 * 8;
      std::uint32_t Q_frag[4];
      ldmatrix_x4<T>(Q_frag, Q.at(q_row, swizzle(q_row, q_column)));
#pragma unroll
      for (int c = 0; c < Bc / 8; c += 2) {
        const int k_row = 8 * c + lane % 8 + lane / 16 * 8, k_column = k + lane / 8 % 2 * 8;
        std::uint32_t K_frag[4];
        ldmatrix_x4<T>(K_frag, K.at(now + k_row, swizzle(k_row, k_column)));
        mma_m16n8k16<T>(S_frag[c], Q_frag, {K_frag[0], K_frag[1]});
        mma_m16n8k16<T>(S_frag[c + 1], Q_frag, {K_frag[2], K_frag[3]});
      }
    }
#pragma unroll
    for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = i0 + r0 + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
        S_frag[c][e] *= n.scale;
        if (masked && j >= n.visible_keys(i)) S_frag[c][e] = -INFINITY;
        probe("S", n.head(b, h), i, j, S_frag[c][e]);
      }
    }

    // m_new = max(m, rowmax S), P~ = exp(S - m_new), l = e^(m - m_new) l + rowsum P~: over the lanes that
    // share a row
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) {
      f32 m_tile = -INFINITY;
#pragma unroll
      for (int c = 0; c < Bc / 8; ++c)
        m_tile = fmaxf(m_tile, fmaxf(S_frag[c][2 * a], S_frag[c][2 * a + 1]));
      const f32 m_new = fmaxf(m[a], lanes_max<key_lanes>(m_tile));
      f32 l_tile = 0.f;
#pragma unroll
      for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
        for (int e = 2 * a; e < 2 * a + 2; ++e) {
          S_frag[c][e] = expf(S_frag[c][e] - finite(m_new));
          l_tile += S_frag[c][e];
        }
      }
      const f32 alpha = expf(m[a] - finite(m_new));
      l[a] = alpha * l[a] + lanes_sum<key_lanes>(l_tile);
      m[a] = m_new;
#pragma unroll
      for (int x = 0; x < d / 8; ++x) {
        O_frag[x][2 * a] *= alpha;
        O_frag[x][2 * a + 1] *= alpha;
      }
      probe("m", n.head(b, h), i0 + r0 + a * row_lanes, j0, m[a]);
      probe("l", n.head(b, h), i0 + r0 + a * row_lanes, j0, l[a]);
    }

    // O~ = e^(m - m_new) O~ + P~ V
#pragma unroll
    for (int c = 0; c < Bc / 8; c += 2) {
      const std::uint32_t P_frag[4] = {round_pair<T>(S_frag[c][0], S_frag[c][1]),
                                       round_pair<T>(S_frag[c][2], S_frag[c][3]),
                                       round_pair<T>(S_frag[c + 1][0], S_frag[c + 1][1]),
                                       round_pair<T>(S_frag[c + 1][2], S_frag[c + 1][3])};
      const int v_row = 8 * c + lane % 16;
#pragma unroll
      for (int x = 0; x < d / 8; x += 2) {
        const int v_column = 8 * x + lane / 16 * 8;
        std::uint32_t V_frag[4];
        ldmatrix_x4_trans<T>(V_frag, V.at(now + v_row, swizzle(v_row, v_column)));
        mma_m16n8k16<T>(O_frag[x], P_frag, {V_frag[0], V_frag[1]});
        mma_m16n8k16<T>(O_frag[x + 1], P_frag, {V_frag[2], V_frag[3]});
      }
    }
#pragma unroll
    for (int x = 0; x < d / 8; ++x) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        probe("O~", n.head(b, h), i0 + r0 + e / 2 * row_lanes, 8 * x + 2 * quad_lane + e % 2, O_frag[x][e]);
    }
    // lab: what must be over before copies write to this pair of buffers again
    __syncthreads();  // this pair of buffers changes: all warps have read it
    // end of lab
  }

  // O = O~ / l, L = m + log l
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) {
    const int i = i0 + r0 + a * row_lanes;
    const f32 inverse = 1.f / (l[a] == 0.f ? f32(1.f) : l[a]);  // a row that sees no key keeps O = 0
#pragma unroll
    for (int x = 0; x < d / 8; ++x) {
      const std::uint32_t o_all = round_pair<T>(O_frag[x][2 * a] * inverse, O_frag[x][2 * a + 1] * inverse);
      if (i < n.Nq) store_pair(Oh + (i * n.O.row + 8 * x + 2 * quad_lane), o_all);
    }
    if (quad_lane == 0 && i < n.Nq) Lh[i] = m[a] + logf(l[a]);
  }
}

void forward(const Forward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const ForwardBuffers<T> x(f);
    for_head_dim<T, 32, 64, 96, 128, 256>(f.problem.d, [&](auto d) {
      launch("fa2_forward", fa2_forward<T, d>, dim3(tiles(f.problem.Nq, Br), x.heads, x.batch), threads,
             Shared<d>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 22,
    .name = "async_copy",
    .title = "asynchronous copies",
    .idea = "cp.async brings the next tile of K and V while the tensor cores work on this one",
    .claim = "bytes in flight at the barrier before the matmuls: 0 -> those of the next tile",
    .before = 21,
    .supports = {.dtypes = half_dtypes, .head_dims = half_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_22
