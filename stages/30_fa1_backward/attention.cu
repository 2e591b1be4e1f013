// FlashAttention-1, backward (Dao et al. 2022, Algorithm 4): tiles of K and V in the outer loop, tiles of Q
// in the inner one, one block per key/value head. S and P are computed again from Q, K and the m and l that
// the forward pass saved, and never leave the chip. dK and dV of a tile of keys stay in registers until all
// rows have been used; dQ travels to global memory and back at every step.
#include "common/kernel/host.hpp"

namespace flashladder::stage_30 {
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

template <int d>
__global__ void __launch_bounds__(threads) fa1_backward(gmem<const f32> Qg,   // [batch, q_heads, Nq, d]
                                                        gmem<const f32> Kg,   // [batch, kv_heads, Nk, d]
                                                        gmem<const f32> Vg,   // [batch, kv_heads, Nk, d]
                                                        gmem<const f32> Og,   // [batch, q_heads, Nq, d]
                                                        gmem<const f32> dOg,  // [batch, q_heads, Nq, d]
                                                        gmem<const f32> mg,   // [batch, q_heads, Nq]
                                                        gmem<const f32> lg,   // [batch, q_heads, Nq]
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
  __shared__ smem_array<f32, Br, 1, "m"> m;
  __shared__ smem_array<f32, Br, 1, "inverse_l"> inverse_l;
  __shared__ smem_array<f32, Br, 1, "D"> D;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int r0 = lane / key_lanes;                              // its rows of S: r0 + a * row_lanes
  const int k0 = warp * warp_keys, c0 = k0 + lane % key_lanes;  // its keys of S: c0 + c * key_lanes
  const int y0 = k0 + lane / column_lanes;  // its lines of dK, dV and dQ: y0 + y * line_lanes
  const int x0 = lane % column_lanes;       // their columns: x0 + x * column_lanes
  const int kv_head = blockIdx.x, b = blockIdx.y;
  const gmem<const f32> Kh = Kg + n.K.at(b, kv_head), Vh = Vg + n.V.at(b, kv_head);
  const gmem<f32> dKh = dKg + n.dK.at(b, kv_head), dVh = dVg + n.dV.at(b, kv_head);

  for (int j0 = 0; j0 < n.Nk; j0 += Bc) {
    // K and V change without a new barrier: the one at the end of a step lies in between.
    load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);
    load_tile<d, threads>(V, Vh, n.V.row, j0, n.Nk);
    f32 dk[thread_lines][d / column_lanes] = {}, dv[thread_lines][d / column_lanes] = {};
    // The query heads of a group add to the same dK and dV, one after the other.
    for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
      const gmem<const f32> Qh = Qg + n.Q.at(b, h), Oh = Og + n.O.at(b, h), dOh = dOg + n.dO.at(b, h);
      const gmem<const f32> mh = mg + n.row0(b, h), lh = lg + n.row0(b, h);
      const gmem<f32> dQh = dQg + n.dQ.at(b, h);
      for (int i0 = 0; i0 < n.Nq; i0 += Br) {
        load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
        // lab: the rows of dO into the tile and, while they are loaded, D = rowsum(dO * O) of each
        // dO and, while it is loaded, D = rowsum(dO * O): a warp to a row. Rows past the end become 0.
        for (int r = warp; r < Br; r += warps) {
          f32 sum = 0.f;
          for (int c = lane; c < d; c += 32) {
            f32 grad = 0.f;
            if (i0 + r < n.Nq) {
              grad = dOh[(i0 + r) * n.dO.row + c];
              sum += grad * Oh[(i0 + r) * n.O.row + c];
            }
            dO(r, c) = grad;
          }
          sum = lanes_sum<32>(sum);
          if (lane == 0) D[r] = sum;
        }
        // end of lab
        if (thread < Br) {
          f32 m_row = 0.f, inverse = 0.f;  // a row past the end: P = 0
          if (i0 + thread < n.Nq) {
            const f32 l_row = lh[i0 + thread];
            m_row = mh[i0 + thread];
            inverse = 1.f / (l_row == 0.f ? f32(1.f) : l_row);  // a row that sees no key gets P = 0
          }
          m[thread] = m_row;
          inverse_l[thread] = inverse;
        }
        __syncthreads();  // Q, K, V, dO, m, inverse_l and D are read: all of them must be there
        const bool masked = n.causal || j0 + Bc > n.Nk;
        count_tile(masked);

        // P = exp(S - m) / l, dS = scale * P * (dP - D)
        f32 s[thread_rows][thread_keys] = {}, dp[thread_rows][thread_keys] = {};
        product<d>(s, Q, K, r0, c0);
        product<d>(dp, dO, V, r0, c0);
#pragma unroll
        for (int a = 0; a < thread_rows; ++a) {
          const int r = r0 + a * row_lanes, i = i0 + r;
          const f32 m_row = m[r], inverse = inverse_l[r], D_row = D[r];
#pragma unroll
          for (int c = 0; c < thread_keys; ++c) {
            const int j = j0 + c0 + c * key_lanes;
            s[a][c] *= n.scale;
            if (masked && j >= n.visible_keys(i)) s[a][c] = -INFINITY;
            // lab: P and dS of row r and this key, into shared memory
            const f32 p = expf(s[a][c] - finite(m_row)) * inverse;
            P(r, c0 + c * key_lanes) = p;
            dS(r, c0 + c * key_lanes) = n.scale * p * (dp[a][c] - D_row);
            // end of lab
            probe("S", n.head(b, h), i, j, s[a][c]);
          }
        }
        __syncthreads();  // P and dS are read: all warps must have written their keys

        // dV += P^T dO, dK += dS^T Q: this warp's keys, all rows
        // lab: what this tile of rows adds to this thread's sums dv and dk
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
        // end of lab
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
        // lab: dQ of these rows in global memory, with what this tile of keys adds, dq
#pragma unroll
        for (int y = 0; y < thread_lines; ++y) {
          const int i = i0 + y0 + y * line_lanes;
          if (i >= n.Nq) continue;
#pragma unroll
          for (int x = 0; x < d / column_lanes; ++x) {
            const std::int64_t at = i * n.dQ.row + x0 + x * column_lanes;
            if (j0 > 0) dq[y][x] += dQh[at];
            dQh[at] = dq[y][x];
          }
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
}

void backward(const Backward& f) {
  const BackwardBuffers<> x(f);
  const SavedBuffer m(f, "m", f.m, x.L.elements()), l(f, "l", f.l, x.L.elements());
  for_head_dim<f32, 32, 64, 128>(f.problem.d, [&](auto d) {
    launch("fa1_backward", fa1_backward<d>, dim3(x.kv_heads, x.batch), threads, Shared<d>::bytes, x.Q, x.K,
           x.V, x.O, x.dO, m.view(), l.view(), x.dQ, x.dK, x.dV, x.sizes);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 30,
    .name = "fa1_backward",
    .title = "FA1 backward",
    .idea = "S and P computed again from m and l, tile by tile; dK and dV stay on chip, dQ travels",
    .claim = "extra memory 2 Nq Nk -> 2 Nq per head; matmul FLOPs 2.0x -> 2.5x of the forward pass",
    .before = 10,
    .supports = {.dtypes = fp32_only, .head_dims = fp32_head_dims},
    .backend = kernel_backend,
    .backward = backward,
    .saved = Saved::m_and_l,
};

}  // namespace flashladder::stage_30
