// FlashAttention-2, backward (Dao 2023, Algorithm 2): a block for each tile of K and V, which goes through
// the tiles of Q that see it. P needs L alone. D = rowsum(dO * O) is computed once, by a kernel of its own,
// which also sets dQ to 0. dK and dV of the tile stay in registers; the blocks add to dQ in global memory.
#include "common/kernel/host.hpp"

namespace flashladder::stage_31 {
namespace {

constexpr int Br = 32, Bc = 32;  // rows of a tile of Q, keys of a tile of K and V
constexpr int warps = 4, threads = 32 * warps;

// Of S and dP a warp takes all rows of a tile and a quarter of its keys. Its lanes form an 8 x 4 grid.
constexpr int warp_keys = Bc / warps;
constexpr int row_lanes = 8, key_lanes = 4;
constexpr int thread_rows = Br / row_lanes, thread_keys = warp_keys / key_lanes;  // of a thread

// Of dK and dV it takes the lines of those keys, of dQ a quarter of the rows. There its lanes form a grid
// of 4 x 8.
constexpr int line_lanes = 4, column_lanes = 8;
constexpr int thread_lines = warp_keys / line_lanes;  // of a thread; Br = Bc

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int tile = 4 * Bc * (d + 4);  // Br = Bc; a row is four words longer: no bank conflicts
  static constexpr int Q = 0, K = Q + tile, V = K + tile, dO = V + tile, bytes = dO + tile;
};

/// X = A B^T, for this thread's rows of A and of B, r0 + a * row_lanes and c0 + c * key_lanes.
template <int d>
__device__ __forceinline__ void product(f32 (&x)[thread_rows][thread_keys],  // of [Br, Bc]
                                        smem_tile<f32, Br, d + 4>& A,        // [Br, d]
                                        smem_tile<f32, Bc, d + 4>& B,        // [Bc, d]
                                        int r0, int c0) {
#pragma unroll 16
  for (int k = 0; k < d; ++k) {
    f32 row[thread_rows];
#pragma unroll
    for (int a = 0; a < thread_rows; ++a) row[a] = A(r0 + a * row_lanes, k);
#pragma unroll
    for (int c = 0; c < thread_keys; ++c) {
      const f32 key = B(c0 + c * key_lanes, k);
#pragma unroll
      for (int a = 0; a < thread_rows; ++a) mac(x[a][c], row[a], key);
    }
  }
}

/// A warp for each row: D = rowsum(dO * O), and dQ = 0, to which the blocks of all tiles of keys add.
template <int d>
__global__ void __launch_bounds__(threads) prepare(gmem<const f32> Og,   // [batch, q_heads, Nq, d]
                                                   gmem<const f32> dOg,  // [batch, q_heads, Nq, d]
                                                   gmem<f32> Dg,         // [batch, q_heads, Nq]
                                                   gmem<f32> dQg,        // [batch, q_heads, Nq, d]
                                                   BackwardSizes n) {
  const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n.Nq) return;  // a whole warp at a time, and there is no barrier
  const int h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> O = Og + (n.O.at(b, h) + i * n.O.row), dO = dOg + (n.dO.at(b, h) + i * n.dO.row);
  const gmem<f32> dQ = dQg + (n.dQ.at(b, h) + i * n.dQ.row);
  // lab: D of this row, into Dg, and its dQ before any block adds to it
  f32 D = 0.f;
  for (int c = lane; c < d; c += 32) {
    D += dO[c] * O[c];
    dQ[c] = 0.f;
  }
  D = lanes_sum<32>(D);
  if (lane == 0) Dg[n.row0(b, h) + i] = D;
  // end of lab
}

template <int d>
__global__ void __launch_bounds__(threads) fa2_backward(gmem<const f32> Qg,   // [batch, q_heads, Nq, d]
                                                        gmem<const f32> Kg,   // [batch, kv_heads, Nk, d]
                                                        gmem<const f32> Vg,   // [batch, kv_heads, Nk, d]
                                                        gmem<const f32> dOg,  // [batch, q_heads, Nq, d]
                                                        gmem<const f32> Lg,   // [batch, q_heads, Nq]
                                                        gmem<const f32> Dg,   // [batch, q_heads, Nq]
                                                        gmem<f32> dQg,        // [batch, q_heads, Nq, d]
                                                        gmem<f32> dKg,        // [batch, kv_heads, Nk, d]
                                                        gmem<f32> dVg,        // [batch, kv_heads, Nk, d]
                                                        BackwardSizes n) {
  auto&& Q = dynamic_tile<f32, Br, d + 4, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<f32, Bc, d + 4, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<f32, Bc, d + 4, "V">(Shared<d>::V);
  auto&& dO = dynamic_tile<f32, Br, d + 4, "dO">(Shared<d>::dO);
  __shared__ smem_array<f32, Br, Bc + key_lanes, "P"> P;
  __shared__ smem_array<f32, Br, Bc + key_lanes, "dS"> dS;
  __shared__ smem_array<f32, Br, 1, "L"> L;
  __shared__ smem_array<f32, Br, 1, "D"> D;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int r0 = lane / key_lanes;                              // its rows of S: r0 + a * row_lanes
  const int k0 = warp * warp_keys, c0 = k0 + lane % key_lanes;  // its keys of S: c0 + c * key_lanes
  const int y0 = k0 + lane / column_lanes;  // its lines of dK, dV and dQ: y0 + y * line_lanes
  const int x0 = lane % column_lanes;       // their columns: x0 + x * column_lanes
  const int j0 = blockIdx.x * Bc, kv_head = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> Kh = Kg + n.K.at(b, kv_head), Vh = Vg + n.V.at(b, kv_head);
  const gmem<f32> dKh = dKg + n.dK.at(b, kv_head), dVh = dVg + n.dV.at(b, kv_head);

  // lab: the first row that sees key j0; 0 or less if all rows see it
  // given: const int first = 0;
  const int first = n.causal ? j0 + n.Nq - n.Nk : 0;  // the first row that sees key j0
  // end of lab
  load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);
  load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
  f32 dk[thread_lines][d / column_lanes] = {}, dv[thread_lines][d / column_lanes] = {};
  // The query heads of a group add to the same dK and dV, one after the other.
  for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
    const gmem<const f32> Qh = Qg + n.Q.at(b, h), dOh = dOg + n.dO.at(b, h);
    const gmem<const f32> Lh = Lg + n.row0(b, h), Dh = Dg + n.row0(b, h);
    const gmem<f32> dQh = dQg + n.dQ.at(b, h);
    // lab: go over the tiles of rows that see a key of this tile: bring Q, dO, L and D of one to shared
    //   memory, and say whether it has to be masked
    // given: for (int i0 = 0; i0 < n.Nq; i0 += Br) {
    // given:   const bool masked = true;
    for (int i0 = first > 0 ? first / Br * Br : 0; i0 < n.Nq; i0 += Br) {
      load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
      load_tile<d, threads>(dO, dOh, n.dO.row, i0, n.Nq);
      if (thread < Br) {
        f32 L_row = INFINITY, D_row = 0.f;  // a row past the end: P = 0
        if (i0 + thread < n.Nq) {
          L_row = Lh[i0 + thread];
          D_row = Dh[i0 + thread];
        }
        L[thread] = L_row;
        D[thread] = D_row;
      }
      __syncthreads();  // Q, K, V, dO, L and D are read: all of them must be there
      const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
      // end of lab
      count_tile(masked);

      // P = exp(S - L), dS = scale * P * (dP - D)
      f32 s[thread_rows][thread_keys] = {}, dp[thread_rows][thread_keys] = {};
      product<d>(s, Q, K, r0, c0);
      product<d>(dp, dO, V, r0, c0);
#pragma unroll
      for (int a = 0; a < thread_rows; ++a) {
        const int r = r0 + a * row_lanes, i = i0 + r;
        const f32 L_row = L[r], D_row = D[r];
#pragma unroll
        for (int c = 0; c < thread_keys; ++c) {
          const int j = j0 + c0 + c * key_lanes;
          s[a][c] *= n.scale;
          if (masked && j >= n.visible_keys(i)) s[a][c] = -INFINITY;
          const f32 p = expf(s[a][c] - finite(L_row));
          P(r, c0 + c * key_lanes) = p;
          dS(r, c0 + c * key_lanes) = n.scale * p * (dp[a][c] - D_row);
          probe("S", n.head(b, h), i, j, s[a][c]);
        }
      }
      __syncthreads();  // P and dS are read: all warps must have written their keys

      // dV += P^T dO, dK += dS^T Q: this warp's keys, all rows
#pragma unroll 8
      for (int k = 0; k < Br; ++k) {
        f32 p[thread_lines], ds[thread_lines];
#pragma unroll
        for (int y = 0; y < thread_lines; ++y) {
          p[y] = P(k, y0 + y * line_lanes);
          ds[y] = dS(k, y0 + y * line_lanes);
        }
#pragma unroll
        for (int x = 0; x < d / column_lanes; ++x) {
          const f32 grad = dO(k, x0 + x * column_lanes), q = Q(k, x0 + x * column_lanes);
#pragma unroll
          for (int y = 0; y < thread_lines; ++y) {
            mac(dv[y][x], p[y], grad);
            mac(dk[y][x], ds[y], q);
          }
        }
      }
      // dQ += dS K: this warp's rows, all keys
      f32 dq[thread_lines][d / column_lanes] = {};
#pragma unroll 8
      for (int k = 0; k < Bc; ++k) {
        f32 ds[thread_lines];
#pragma unroll
        for (int y = 0; y < thread_lines; ++y) ds[y] = dS(y0 + y * line_lanes, k);
#pragma unroll
        for (int x = 0; x < d / column_lanes; ++x) {
          const f32 key = K(k, x0 + x * column_lanes);
#pragma unroll
          for (int y = 0; y < thread_lines; ++y) mac(dq[y][x], ds[y], key);
        }
      }
      // lab: what this tile of keys adds to dQ of these rows, dq, added to dQ in global memory
#pragma unroll
      for (int y = 0; y < thread_lines; ++y) {
        const int i = i0 + y0 + y * line_lanes;
        if (i >= n.Nq) continue;
#pragma unroll
        for (int x = 0; x < d / column_lanes; ++x)
          atomic_add(dQh + (i * n.dQ.row + x0 + x * column_lanes), dq[y][x]);
      }
      // end of lab
      __syncthreads();  // what is in shared memory changes: all warps have read it
    }
  }
#pragma unroll
  for (int y = 0; y < thread_lines; ++y) {
    const int j = j0 + y0 + y * line_lanes;
    if (j >= n.Nk) continue;
#pragma unroll
    for (int x = 0; x < d / column_lanes; ++x) {
      dKh[j * n.dK.row + x0 + x * column_lanes] = dk[y][x];
      dVh[j * n.dV.row + x0 + x * column_lanes] = dv[y][x];
    }
  }
}

void backward(const Backward& f) {
  const BackwardBuffers<> x(f);
  ExtraBuffer D(f, "D", x.L.elements());
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    launch("prepare", prepare<d>, dim3(tiles(f.problem.Nq, warps), x.heads, x.batch), threads, 0, x.O, x.dO,
           D, x.dQ, x.sizes);
    launch("fa2_backward", fa2_backward<d>, dim3(tiles(f.problem.Nk, Bc), x.kv_heads, x.batch), threads,
           Shared<d>::bytes, x.Q, x.K, x.V, x.dO, x.L, D, x.dQ, x.dK, x.dV, x.sizes);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 31,
    .name = "fa2_backward",
    .title = "FA2 backward",
    .idea = "a block for every tile of keys adds to dQ atomically; L for m and l, D computed once",
    .claim = "blocks BHkv -> BHkv Tc; statistics saved 2 Nq -> Nq; atomics Tc Nq d per head without a mask",
    .before = 30,
    .supports = {.dtypes = fp32_only, .head_dims = fp32_head_dims},
    .backend = kernel_backend,
    .backward = backward,
};

}  // namespace flashladder::stage_31
