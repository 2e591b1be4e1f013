// Standard attention on a GPU, three kernels one after the other: S = scale Q K^T, P = softmax(S), O = P V.
// S and P are stored in full. The two matrix products are cut into tiles of Br x Bc, as in all stages that
// follow. The backward pass is given P, and makes four matrix products of it: dP = dO V^T and dQ = dS K are
// the products of the forward pass with other matrices, dV = P^T dO and dK = dS^T Q have a kernel of their
// own.
#include "common/kernel/host.hpp"

namespace flashladder::stage_10 {
namespace {

constexpr int Br = 64;  // rows of a tile of Q
template <int d>
constexpr int tile_keys = 4096 / d;  // Bc, keys of a tile of K and V: 16 KB of each, whatever d is
constexpr int warps = 8, threads = 32 * warps;

// A warp takes an eighth of the rows of a tile and all of its columns. Its lanes form a 2 x 16 grid.
constexpr int warp_rows = Br / warps;
constexpr int row_lanes = 2, key_lanes = 16;
constexpr int thread_rows = warp_rows / row_lanes;  // of a thread

/// Where the tiles of Q and K begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int pitch = d + 2;  // a row is two words longer: no bank conflicts
  static constexpr int Q_tile = 4 * Br * pitch, KV_tile = 4 * tile_keys<d> * pitch;
  static constexpr int Q = 0, K = Q + Q_tile, bytes = K + KV_tile;
};

/// A block for each tile of S.
template <int d>
__global__ void __launch_bounds__(threads) scores(gmem<const f32> Qg,  // [batch, q_heads, Nq, d]
                                                  gmem<const f32> Kg,  // [batch, kv_heads, Nk, d]
                                                  gmem<f32> Sg,        // [batch, q_heads, Nq, Nk]
                                                  Sizes n) {
  constexpr int Bc = tile_keys<d>, thread_keys = Bc / key_lanes, pitch = Shared<d>::pitch;
  auto&& Q = dynamic_tile<f32, Br, pitch, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<f32, Bc, pitch, "K">(Shared<d>::K);

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int r0 = warp * warp_rows + lane / key_lanes;  // its rows of a tile: r0 + a * row_lanes
  const int c0 = lane % key_lanes;                     // its keys: c0 + c * key_lanes
  const int Tc = tiles(n.Nk, Bc), h = blockIdx.y, b = blockIdx.z;
  const int i0 = blockIdx.x / Tc * Br, j0 = blockIdx.x % Tc * Bc;
  const gmem<f32> Sh = Sg + n.row0(b, h) * n.Nk;

  load_tile<d, threads>(Q, Qg + n.Q.at(b, h), n.Q.row, i0, n.Nq);
  load_tile<d, threads>(K, Kg + n.K.at(b, n.kv_head(h)), n.K.row, j0, n.Nk);
  __syncthreads();  // Q and K are read: all of them must be there
  const bool masked = n.causal || j0 + Bc > n.Nk;
  count_tile(masked);

  // S = scale * Q K^T
  f32 s[thread_rows][thread_keys] = {};
  // lab: the sums over d of this thread's scores, from Q and K in shared memory
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
  // end of lab
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) {
    const int i = i0 + r0 + a * row_lanes;
#pragma unroll
    for (int c = 0; c < thread_keys; ++c) {
      const int j = j0 + c0 + c * key_lanes;
      s[a][c] *= n.scale;
      if (masked && j >= n.visible_keys(i)) s[a][c] = -INFINITY;
      if (i < n.Nq && j < n.Nk) Sh[std::int64_t{i} * n.Nk + j] = s[a][c];
      probe("S", n.head(b, h), i, j, s[a][c]);
    }
  }
}

/// A warp for each row of S, in three passes: its maximum, its sum of exponentials, P.
__global__ void __launch_bounds__(threads) softmax(gmem<const f32> Sg,  // [batch, q_heads, Nq, Nk]
                                                   gmem<f32> Pg,        // [batch, q_heads, Nq, Nk]
                                                   gmem<f32> Lg,        // [batch, q_heads, Nq]
                                                   Sizes n) {
  const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n.Nq) return;  // a whole warp at a time, and there is no barrier
  const int h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> S = Sg + (n.row0(b, h) + i) * n.Nk;
  const gmem<f32> P = Pg + (n.row0(b, h) + i) * n.Nk;
  f32 m = -INFINITY, l = 0.f;
  // lab: m and l of the whole row; each lane reads a part of it, twice
  for (int j = lane; j < n.Nk; j += 32) m = fmaxf(m, S[j]);
  m = lanes_max<32>(m);
  for (int j = lane; j < n.Nk; j += 32) l += expf(S[j] - finite(m));
  l = lanes_sum<32>(l);
  // end of lab
  probe("m", n.head(b, h), i, n.Nk - 1, m);
  probe("l", n.head(b, h), i, n.Nk - 1, l);
  // lab: the row of P, with one division in all
  const f32 inverse = 1.f / (l == 0.f ? f32(1.f) : l);  // a row that sees no key gets P = 0
  for (int j = lane; j < n.Nk; j += 32) P[j] = expf(S[j] - finite(m)) * inverse;
  // end of lab
  if (lane == 0) Lg[n.row0(b, h) + i] = m + logf(l);
}

/// A block for each tile of O.
template <int d>
__global__ void __launch_bounds__(threads) output(gmem<const f32> Pg,  // [batch, q_heads, Nq, Nk]
                                                  gmem<const f32> Vg,  // [batch, kv_heads, Nk, d]
                                                  gmem<f32> Og,        // [batch, q_heads, Nq, d]
                                                  Sizes n) {
  constexpr int Bc = tile_keys<d>;
  auto&& V = dynamic_tile<f32, Bc, Shared<d>::pitch, "V">(0);
  __shared__ smem_array<f32, Br, Bc + key_lanes, "P"> P;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int r0 = warp * warp_rows + lane / key_lanes;  // its rows of a tile: r0 + a * row_lanes
  const int x0 = lane % key_lanes;                     // its columns of O: x0 + x * key_lanes
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> Ph = Pg + n.row0(b, h) * n.Nk;
  const gmem<const f32> Vh = Vg + n.V.at(b, n.kv_head(h));
  const gmem<f32> Oh = Og + n.O.at(b, h);

  f32 o[thread_rows][d / key_lanes] = {};
  for (int j0 = 0; j0 < n.Nk; j0 += Bc) {
    __syncthreads();  // P and V change: all warps have read the last ones
    for (int e = thread; e < Br * Bc; e += threads) {
      const int i = i0 + e / Bc, j = j0 + e % Bc;
      f32 p = 0.f;
      if (i < n.Nq && j < n.Nk) p = Ph[std::int64_t{i} * n.Nk + j];
      P(e / Bc, e % Bc) = p;
    }
    // lab: the tile of V, and what this tile of keys adds to this thread's sums of O
    load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
    __syncthreads();  // P and V are read: all of them must be there
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
  }
#pragma unroll
  for (int a = 0; a < thread_rows; ++a) {
    const int i = i0 + r0 + a * row_lanes;
#pragma unroll
    for (int x = 0; x < d / key_lanes; ++x) {
      if (i < n.Nq) Oh[i * n.O.row + x0 + x * key_lanes] = o[a][x];
      probe("O", n.head(b, h), i, x0 + x * key_lanes, o[a][x]);
    }
  }
}

/// A warp for each row of dP, which becomes dS = scale P * (dP - D), D = rowsum(P * dP).
__global__ void __launch_bounds__(threads) softmax_backward(gmem<const f32> Pg,  // [batch, q_heads, Nq, Nk]
                                                            gmem<f32> dSg,       // the same, dP at first
                                                            Sizes n) {
  const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n.Nq) return;  // a whole warp at a time, and there is no barrier
  const std::int64_t row = (n.row0(blockIdx.z, blockIdx.y) + i) * n.Nk;
  const gmem<const f32> P = Pg + row;
  const gmem<f32> dS = dSg + row;
  f32 D = 0.f;
  for (int j = lane; j < n.Nk; j += 32) D += P[j] * dS[j];
  D = lanes_sum<32>(D);
  for (int j = lane; j < n.Nk; j += 32) dS[j] = n.scale * P[j] * (dS[j] - D);
}

/// X = A^T B, summed over the query heads of a group: dV = P^T dO, and dK = dS^T Q. A block for each tile
/// of keys, which goes through all rows.
template <int d>
__global__ void __launch_bounds__(threads) transposed(gmem<const f32> Ag,  // [batch, q_heads, Nq, Nk]
                                                      gmem<const f32> Bg,  // [batch, q_heads, Nq, d]
                                                      Strides B_strides,
                                                      gmem<f32> Xg,  // [batch, kv_heads, Nk, d]
                                                      Strides X_strides, Sizes n) {
  constexpr int Bc = tile_keys<d>, warp_keys = Bc / warps, thread_keys = warp_keys / row_lanes;
  auto&& B = dynamic_tile<f32, Br, Shared<d>::pitch, "B">(0);
  __shared__ smem_array<f32, Br, Bc + key_lanes, "A"> A;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int c0 = warp * warp_keys + lane / key_lanes;  // its keys of a tile: c0 + c * row_lanes
  const int x0 = lane % key_lanes;                     // its columns of X: x0 + x * key_lanes
  const int j0 = blockIdx.x * Bc, kv_head = blockIdx.y, b = blockIdx.z;

  f32 sum[thread_keys][d / key_lanes] = {};
  for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
    const gmem<const f32> Ah = Ag + n.row0(b, h) * n.Nk;
    for (int i0 = 0; i0 < n.Nq; i0 += Br) {
      __syncthreads();  // A and B change: all warps have read the last ones
      for (int e = thread; e < Br * Bc; e += threads) {
        const int i = i0 + e / Bc, j = j0 + e % Bc;
        f32 a = 0.f;
        if (i < n.Nq && j < n.Nk) a = Ah[std::int64_t{i} * n.Nk + j];
        A(e / Bc, e % Bc) = a;
      }
      load_tile<d, threads>(B, Bg + B_strides.at(b, h), B_strides.row, i0, n.Nq);
      __syncthreads();  // A and B are read: all of them must be there
#pragma unroll 8
      for (int k = 0; k < Br; ++k) {
        f32 a[thread_keys];
#pragma unroll
        for (int c = 0; c < thread_keys; ++c) a[c] = A(k, c0 + c * row_lanes);
#pragma unroll
        for (int x = 0; x < d / key_lanes; ++x) {
          const f32 y = B(k, x0 + x * key_lanes);
#pragma unroll
          for (int c = 0; c < thread_keys; ++c) mac(sum[c][x], a[c], y);
        }
      }
    }
  }
  const gmem<f32> X = Xg + X_strides.at(b, kv_head);
#pragma unroll
  for (int c = 0; c < thread_keys; ++c) {
    const int j = j0 + c0 + c * row_lanes;
#pragma unroll
    for (int x = 0; x < d / key_lanes; ++x) {
      if (j < n.Nk) X[j * X_strides.row + x0 + x * key_lanes] = sum[c][x];
    }
  }
}

void forward(const Forward& f) {
  const ForwardBuffers<> x(f);
  const std::int64_t scores_of_all = x.L.elements() * f.problem.Nk;
  ExtraBuffer S(f, "S", scores_of_all), P(f, "P", scores_of_all);
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    const unsigned Tr = tiles(f.problem.Nq, Br), Tc = tiles(f.problem.Nk, tile_keys<d>);
    launch("scores", scores<d>, dim3(Tr * Tc, x.heads, x.batch), threads, Shared<d>::bytes, x.Q, x.K, S,
           x.sizes);
    launch("softmax", softmax, dim3(tiles(f.problem.Nq, warps), x.heads, x.batch), threads, 0, S, P, x.L,
           x.sizes);
    launch("output", output<d>, dim3(Tr, x.heads, x.batch), threads, Shared<d>::KV_tile, P, x.V, x.O,
           x.sizes);
  });
}

void backward(const Backward& f) {
  const BackwardBuffers<> x(f);
  const std::int64_t scores_of_all = x.L.elements() * f.problem.Nk;
  const SavedBuffer P(f, "P", f.P, scores_of_all);
  ExtraBuffer dS(f, "dS", scores_of_all);
  Sizes dP_sizes = x.sizes;  // dP = dO V^T: no scale, and no mask, for P is 0 where there is one
  dP_sizes.Q = x.sizes.dO;
  dP_sizes.K = x.sizes.V;
  dP_sizes.causal = false;
  dP_sizes.scale = 1;
  Sizes dQ_sizes = x.sizes;  // dQ = dS K
  dQ_sizes.V = x.sizes.K;
  dQ_sizes.O = x.sizes.dQ;
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    const unsigned Tr = tiles(f.problem.Nq, Br), Tc = tiles(f.problem.Nk, tile_keys<d>);
    const dim3 key_tiles(Tc, x.kv_heads, x.batch);
    launch("dP", scores<d>, dim3(Tr * Tc, x.heads, x.batch), threads, Shared<d>::bytes, x.dO, x.V, dS,
           dP_sizes);
    launch("dV", transposed<d>, key_tiles, threads, Shared<d>::Q_tile, P.view(), x.dO, x.sizes.dO, x.dV,
           x.sizes.dV, x.sizes);
    launch("softmax_backward", softmax_backward, dim3(tiles(f.problem.Nq, warps), x.heads, x.batch),
           threads, 0, P.view(), dS, x.sizes);
    launch("dQ", output<d>, dim3(Tr, x.heads, x.batch), threads, Shared<d>::KV_tile, dS, x.K, x.dQ,
           dQ_sizes);
    launch("dK", transposed<d>, key_tiles, threads, Shared<d>::Q_tile, dS, x.Q, x.sizes.Q, x.dK, x.sizes.dK,
           x.sizes);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 10,
    .name = "naive_gpu",
    .title = "naive on a GPU",
    .idea =
        "standard attention: three kernels, S and P stored in full, matrix products in tiles of Br x Bc",
    .claim =
        "reads (Tc Nq + 2 Tr Nk) d + 4 Nq Nk per head, writes 2 Nq Nk + Nq d + Nq; extra memory 2 Nq Nk",
    .before = 2,
    .supports = {.dtypes = fp32_only, .head_dims = fp32_head_dims},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
    .saved = Saved::P,
};

}  // namespace flashladder::stage_10
