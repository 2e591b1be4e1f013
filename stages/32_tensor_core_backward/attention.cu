// Tensor cores for the backward pass: all five products are done by mma.sync on 16-bit numbers, with sums
// in fp32. S and dP are computed transposed, a warp for 16 keys. Then the P^T and dS^T that a warp holds,
// packed in pairs, are the operands of dV += P^T dO and dK += dS^T Q. Only dS goes through shared
// memory, for dQ.
#include "common/kernel/host.hpp"

namespace flashladder::stage_32 {
namespace {

constexpr int Br = 32;  // rows of a tile of Q
constexpr int warps = 4, threads = 32 * warps;
// The four lanes of a quad have keys quad and quad + 8 of 16, each rows 2 quad_lane and 2 quad_lane + 1 of
// every 8.
constexpr int row_lanes = 4;

// A warp takes 16 keys of a tile, and all rows. Where dK and dV of 16 keys are more than its registers
// hold, two warps share the keys: the first has S, P and dV, the second dP, dS and dK.
template <int d>
constexpr int share = d <= 128 ? 1 : 2;
template <int d>
constexpr int Bc = 16 * warps / share<d>;  // keys of a tile of K and V

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d>
struct Shared {
  static constexpr int Q = 0, dO = Q + 2 * Br * d, K = dO + 2 * Br * d, V = K + 2 * Bc<d> * d,
                       bytes = V + 2 * Bc<d> * d;
};

/// X^T = A B^T, for 16 keys from k0 on and all rows.
template <class T, int d, int keys>
__device__ __forceinline__ void product(f32 (&x)[Br / 8][4],       // of [16, Br]
                                        smem_tile<T, keys, d>& A,  // K or V
                                        smem_tile<T, Br, d>& B,    // Q or dO
                                        int k0, int lane) {
#pragma unroll
  for (int k = 0; k < d; k += 16) {
    std::uint32_t a[4];
    ldmatrix_x4<T>(a, A.at(k0 + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int c = 0; c < Br / 8; c += 2) {
      std::uint32_t b[4];
      ldmatrix_x4<T>(b, B.at(8 * c + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
      mma_m16n8k16<T>(x[c], a, {b[0], b[1]});
      mma_m16n8k16<T>(x[c + 1], a, {b[2], b[3]});
    }
  }
}

/// C += A B, for A in registers and 16 rows and 8 * column_chunks columns of B, from (row, column) on.
template <class T, int column_chunks, int rows, int d>
__device__ __forceinline__ void add_product(f32 (&c)[column_chunks][4],   // [16, 8 * column_chunks]
                                            const std::uint32_t (&a)[4],  // [16, 16]
                                            smem_tile<T, rows, d>& B, int row, int column, int lane) {
#pragma unroll
  for (int x = 0; x < column_chunks; x += 2) {
    std::uint32_t b[4];
    ldmatrix_x4_trans<T>(b, B.at(row + lane % 16, column + 8 * x + lane / 16 * 8));
    mma_m16n8k16<T>(c[x], a, {b[0], b[1]});
    mma_m16n8k16<T>(c[x + 1], a, {b[2], b[3]});
  }
}

/// A warp for each row: D = rowsum(dO * O), and dQ_sum = 0, to which the blocks of all tiles of keys add.
template <class T, int d>
__global__ void __launch_bounds__(threads) prepare(gmem<const T> Og,   // [batch, q_heads, Nq, d]
                                                   gmem<const T> dOg,  // [batch, q_heads, Nq, d]
                                                   gmem<f32> Dg,       // [batch, q_heads, Nq]
                                                   gmem<f32> dQ_sumg,  // [batch, q_heads, Nq, d]
                                                   BackwardSizes n) {
  const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n.Nq) return;  // a whole warp at a time, and there is no barrier
  const int h = blockIdx.y, b = blockIdx.z;
  const gmem<const T> O = Og + (n.O.at(b, h) + i * n.O.row), dO = dOg + (n.dO.at(b, h) + i * n.dO.row);
  const gmem<f32> dQ_sum = dQ_sumg + (n.row0(b, h) + i) * d;
  f32 D = 0.f;
  for (int c = lane; c < d; c += 32) {
    D += static_cast<f32>(dO[c]) * static_cast<f32>(O[c]);
    dQ_sum[c] = 0.f;
  }
  D = lanes_sum<32>(D);
  if (lane == 0) Dg[n.row0(b, h) + i] = D;
}

template <class T, int d>
__global__ void __launch_bounds__(threads) fa2_backward(gmem<const T> Qg,    // [batch, q_heads, Nq, d]
                                                        gmem<const T> Kg,    // [batch, kv_heads, Nk, d]
                                                        gmem<const T> Vg,    // [batch, kv_heads, Nk, d]
                                                        gmem<const T> dOg,   // [batch, q_heads, Nq, d]
                                                        gmem<const f32> Lg,  // [batch, q_heads, Nq]
                                                        gmem<const f32> Dg,  // [batch, q_heads, Nq]
                                                        gmem<f32> dQ_sumg,   // [batch, q_heads, Nq, d]
                                                        gmem<T> dKg,         // [batch, kv_heads, Nk, d]
                                                        gmem<T> dVg,         // [batch, kv_heads, Nk, d]
                                                        BackwardSizes n) {
  constexpr int Bc = stage_32::Bc<d>, share = stage_32::share<d>, turns = 2 / share;
  auto&& Q = dynamic_tile<T, Br, d, "Q">(Shared<d>::Q);
  auto&& dO = dynamic_tile<T, Br, d, "dO">(Shared<d>::dO);
  auto&& K = dynamic_tile<T, Bc, d, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<T, Bc, d, "V">(Shared<d>::V);
  __shared__ smem_array<T, Bc, Br, "dS"> dS;  // transposed
  __shared__ smem_array<f32, Br, 1, "L"> L;
  __shared__ smem_array<f32, Br, 1, "D"> D;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / row_lanes,
            quad_lane = lane % row_lanes;
  const int k0 = warp / share * 16;                            // its keys of a tile
  const int r0 = warp / 2 * 16, column0 = warp % 2 * (d / 2);  // its 16 rows of dQ, and its half of them
  const int j0 = blockIdx.x * Bc, kv_head = blockIdx.y, b = blockIdx.z;

  const int first = n.causal ? j0 + n.Nq - n.Nk : 0;  // the first row that sees key j0
  load_tile<d, threads>(K, Kg + n.K.at(b, kv_head), n.K.row, j0, n.Nk);
  load_tile<d, threads>(V, Vg + n.V.at(b, kv_head), n.V.row, j0, n.Nk);
  f32 sum[turns][d / 8][4] = {};  // dV and dK as mma has them; where two warps share the keys, one of them
  // The query heads of a group add to the same dK and dV, one after the other.
  for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
    const gmem<const T> Qh = Qg + n.Q.at(b, h), dOh = dOg + n.dO.at(b, h);
    const gmem<const f32> Lh = Lg + n.row0(b, h), Dh = Dg + n.row0(b, h);
    const gmem<f32> dQ_sumh = dQ_sumg + n.row0(b, h) * d;
    for (int i0 = first > 0 ? first / Br * Br : 0; i0 < n.Nq; i0 += Br) {
      // Q, dO, L and D change without a barrier: all warps had read them before dS was complete.
      load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);
      load_tile<d, threads>(dO, dOh, n.dO.row, i0, n.Nq);
      if (const int r = threadIdx.x; r < Br) {
        f32 L_row = INFINITY, D_row = 0.f;  // a row past the end: P = 0
        if (i0 + r < n.Nq) {
          L_row = Lh[i0 + r];
          D_row = Dh[i0 + r];
        }
        L[r] = L_row;
        D[r] = D_row;
      }
      // Q, K, V, dO, L and D are read, dS changes: all of them must be there, all warps have read the
      // last dS.
      __syncthreads();
      const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
      count_tile(masked);

      // First S^T = K Q^T, P = exp(S - L) and dV += P^T dO, then dP^T = V dO^T, dS = P * (dP - D) and
      // dK += dS^T Q: the same products with other operands. Where two warps share the keys, each has one
      // turn.
      f32 p[Br / 8][4];
#pragma unroll
      for (int turn = 0; turn < turns; ++turn) {
        const bool of_dS = turns == 2 ? turn == 1 : warp % 2 == 1;
        f32 x[Br / 8][4] = {};
        product(x, of_dS ? V : K, of_dS ? dO : Q, k0, lane);
        if (!of_dS) {
#pragma unroll
          for (int c = 0; c < Br / 8; ++c) {
            const f32 L_rows[2] = {L[8 * c + 2 * quad_lane], L[8 * c + 2 * quad_lane + 1]};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int i = i0 + 8 * c + 2 * quad_lane + e % 2, j = j0 + k0 + quad + e / 2 * 8;
              x[c][e] *= n.scale;
              if (masked && j >= n.visible_keys(i)) x[c][e] = -INFINITY;
              p[c][e] = x[c][e] = expf(x[c][e] - finite(L_rows[e % 2]));
            }
          }
        }
        if constexpr (share == 2) {  // P goes to the other warp, lane by lane
          __shared__ smem_array<f32, Bc / 16 * (Br / 8), 128, "P"> P;
#pragma unroll
          for (int c = 0; c < Br / 8; ++c) {
            if (!of_dS)
              store4(P.at(warp / 2 * (Br / 8) + c, 4 * lane),
                     make_float4(p[c][0], p[c][1], p[c][2], p[c][3]));
          }
          __syncthreads();  // P is read: the warp that has it must have written it
#pragma unroll
          for (int c = 0; c < Br / 8; ++c) {
            if (!of_dS) continue;
            const float4 other = load4(P.at(warp / 2 * (Br / 8) + c, 4 * lane));
            p[c][0] = other.x, p[c][1] = other.y, p[c][2] = other.z, p[c][3] = other.w;
          }
        }
        if (of_dS) {
#pragma unroll
          for (int c = 0; c < Br / 8; ++c) {
            const f32 D_rows[2] = {D[8 * c + 2 * quad_lane], D[8 * c + 2 * quad_lane + 1]};
#pragma unroll
            for (int e = 0; e < 4; ++e) x[c][e] = p[c][e] * (x[c][e] - D_rows[e % 2]);
          }
        }
#pragma unroll
        for (int c = 0; c < Br / 8; c += 2) {
          const std::uint32_t a[4] = {round_pair<T>(x[c][0], x[c][1]), round_pair<T>(x[c][2], x[c][3]),
                                      round_pair<T>(x[c + 1][0], x[c + 1][1]),
                                      round_pair<T>(x[c + 1][2], x[c + 1][3])};
          add_product(sum[turn], a, of_dS ? Q : dO, 8 * c, 0, lane);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (of_dS) store_pair(dS.at(k0 + quad + e % 2 * 8, 8 * c + 2 * quad_lane + e / 2 * 8), a[e]);
          }
        }
      }
      // dS is read, Q, dO, L and D change: dS must be complete, all warps have read the others.
      __syncthreads();

      // dQ += dS K: this warp's rows and columns, all keys
      f32 dq[d / 16][4] = {};
#pragma unroll
      for (int k = 0; k < Bc; k += 16) {
        std::uint32_t ds[4];
        ldmatrix_x4_trans<T>(ds, dS.at(k + lane % 8 + lane / 16 * 8, r0 + lane / 8 % 2 * 8));
        add_product(dq, ds, K, k, column0, lane);
      }
#pragma unroll
      for (int x = 0; x < d / 16; ++x) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = i0 + r0 + quad + e / 2 * 8;
          if (i < n.Nq)
            atomic_add(dQ_sumh + (i * std::int64_t{d} + column0 + 8 * x + 2 * quad_lane + e % 2), dq[x][e]);
        }
      }
    }
  }
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    const bool of_dS = turns == 2 ? turn == 1 : warp % 2 == 1;
    const gmem<T> out = of_dS ? dKg + n.dK.at(b, kv_head) : dVg + n.dV.at(b, kv_head);
    const std::int64_t row = of_dS ? n.dK.row : n.dV.row;
#pragma unroll
    for (int x = 0; x < d / 8; ++x) {
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const int j = j0 + k0 + quad + a * 8;
        if (j >= n.Nk) continue;
        f32 low = sum[turn][x][2 * a], high = sum[turn][x][2 * a + 1];
        if (of_dS) low *= n.scale, high *= n.scale;  // dS had no scale
        store_pair(out + (j * row + 8 * x + 2 * quad_lane), round_pair<T>(low, high));
      }
    }
  }
}

/// A warp for each row: dQ = scale * dQ_sum, in 16 bits.
template <class T, int d>
__global__ void __launch_bounds__(threads) convert(gmem<const f32> dQ_sumg,  // [batch, q_heads, Nq, d]
                                                   gmem<T> dQg,              // [batch, q_heads, Nq, d]
                                                   BackwardSizes n) {
  const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n.Nq) return;
  const int h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> dQ_sum = dQ_sumg + (n.row0(b, h) + i) * d;
  const gmem<T> dQ = dQg + (n.dQ.at(b, h) + i * n.dQ.row);
  for (int c = 2 * lane; c < d; c += 64)
    store_pair(dQ + c, round_pair<T>(n.scale * dQ_sum[c], n.scale * dQ_sum[c + 1]));
}

void backward(const Backward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const BackwardBuffers<T> x(f);
    const dim3 row_blocks(tiles(f.problem.Nq, warps), x.heads, x.batch);
    ExtraBuffer D(f, "D", x.L.elements()), dQ_sum(f, "dQ_sum", x.L.elements() * f.problem.d);
    for_head_dim<32, 64, 96, 128, 256>(f.problem.d, [&](auto d) {
      launch("prepare", prepare<T, d>, row_blocks, threads, 0, x.O, x.dO, D, dQ_sum, x.sizes);
      launch("fa2_backward", fa2_backward<T, d>, dim3(tiles(f.problem.Nk, Bc<d>), x.kv_heads, x.batch),
             threads, Shared<d>::bytes, x.Q, x.K, x.V, x.dO, x.L, D, dQ_sum, x.dK, x.dV, x.sizes);
      launch("convert", convert<T, d>, row_blocks, threads, 0, dQ_sum, x.dQ, x.sizes);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 32,
    .name = "tensor_core_backward",
    .title = "tensor-core backward",
    .idea = "all five products on tensor cores; of P and dS, dS alone goes through shared memory",
    .claim =
        "matmul FLOPs on tensor cores 0 -> 100 %; shared bytes of P 0 for d <= 128, of dS 2 Br Bc a tile",
    .before = 31,
    .supports = {.dtypes = half_dtypes, .head_dims = half_head_dims},
    .backend = kernel_backend,
    .backward = backward,
};

}  // namespace flashladder::stage_32
