// Tensor cores: mma.sync computes both products of 16-bit numbers, with sums in fp32. The numbers of S that
// a warp holds after the first product, packed in pairs, are the P of the second: P stays in registers.
#include "common/kernel/host.hpp"

namespace flashladder::stage_20 {
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
  static constexpr int Q = 0, K = Q + 2 * tile, V = K + tile, bytes = V + tile;
};

template <class T, int d>
__global__ void __launch_bounds__(threads) fa2_forward(gmem<const T> Qg,  // [batch, q_heads, Nq, d]
                                                       gmem<const T> Kg,  // [batch, kv_heads, Nk, d]
                                                       gmem<const T> Vg,  // [batch, kv_heads, Nk, d]
                                                       gmem<T> Og,        // [batch, q_heads, Nq, d]
                                                       gmem<f32> Lg,      // [batch, q_heads, Nq]
                                                       Sizes n) {
  auto&& Q = dynamic_tile<T, Br, d, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<T, Bc, d, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<T, Bc, d, "V">(Shared<d>::V);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / key_lanes,
            quad_lane = lane % key_lanes;
  const int r0 = warp * warp_rows + quad;  // its rows of a tile: r0 + a * row_lanes
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const T> Qh = Qg + n.Q.at(b, h);
  const gmem<const T> Kh = Kg + n.K.at(b, n.kv_head(h));
  const gmem<const T> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<T> Oh = Og + n.O.at(b, h);
  const gmem<f32> Lh = Lg + n.row0(b, h);

  load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
  f32 m[thread_rows], l[thread_rows] = {}, O_frag[d / 8][4] = {};  // of its rows; O~ as mma has it
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) m[a] = -INFINITY;
  const int visible = n.visible_keys(i0 + Br - 1);  // to the last row, which sees the most
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    __syncthreads();  // K and V change: all warps have read the last ones
    load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);
    load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
    __syncthreads();                                   // Q, K and V are read: all of them must be there
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    // S = scale * Q K^T
    f32 S_frag[Bc / 8][4] = {};
    // lab: this warp's 16 rows times all keys of the tile, fragment by fragment
#pragma unroll
    for (int k = 0; k < d; k += 16) {
      const std::uint32_t Q_frag[4] = {
          load_pair(Q.at(r0, k + 2 * quad_lane)), load_pair(Q.at(r0 + 8, k + 2 * quad_lane)),
          load_pair(Q.at(r0, k + 2 * quad_lane + 8)), load_pair(Q.at(r0 + 8, k + 2 * quad_lane + 8))};
#pragma unroll
      for (int c = 0; c < Bc / 8; ++c) {
        const std::uint32_t K_frag[2] = {load_pair(K.at(8 * c + quad, k + 2 * quad_lane)),
                                         load_pair(K.at(8 * c + quad, k + 2 * quad_lane + 8))};
        mma_m16n8k16<T>(S_frag[c], Q_frag, K_frag);
      }
    }
    // end of lab
#pragma unroll
    for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // lab: the row and the key of element e of S_frag[c]
        // given: const int i = i0, j = j0;
        const int i = i0 + r0 + e / 2 * row_lanes, j = j0 + 8 * c + 2 * quad_lane + e % 2;
        // end of lab
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
    // lab: O~ with P~ V, fragment by fragment; P~ is used from the registers that it is in
#pragma unroll
    for (int c = 0; c < Bc / 8; c += 2) {
      const std::uint32_t P_frag[4] = {round_pair<T>(S_frag[c][0], S_frag[c][1]),
                                       round_pair<T>(S_frag[c][2], S_frag[c][3]),
                                       round_pair<T>(S_frag[c + 1][0], S_frag[c + 1][1]),
                                       round_pair<T>(S_frag[c + 1][2], S_frag[c + 1][3])};
      const int k = 8 * c + 2 * quad_lane;  // its keys: k, k + 1, k + 8, k + 9
#pragma unroll
      for (int x = 0; x < d / 8; ++x) {
        const std::uint32_t V_frag[2] = {pair<T>(V(k, 8 * x + quad), V(k + 1, 8 * x + quad)),
                                         pair<T>(V(k + 8, 8 * x + quad), V(k + 9, 8 * x + quad))};
        mma_m16n8k16<T>(O_frag[x], P_frag, V_frag);
      }
    }
    // end of lab
#pragma unroll
    for (int x = 0; x < d / 8; ++x) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        probe("O~", n.head(b, h), i0 + r0 + e / 2 * row_lanes, 8 * x + 2 * quad_lane + e % 2, O_frag[x][e]);
    }
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
    .number = 20,
    .name = "tensor_cores",
    .title = "tensor cores",
    .idea = "both products on tensor cores, in fp16 or bf16; P goes from one to the other in registers",
    .claim = "matmul FLOPs on tensor cores 0 -> 100 %; shared P gone",
    .before = 15,
    .supports = {.dtypes = half_dtypes, .head_dims = half_head_dims},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_20
