// Tensor cores for the backward pass: all five products are done by mma.sync on 16-bit numbers, with sums
// in fp32. S and dP are computed transposed, a warp for 16 keys. Then the P^T and dS^T that a warp holds,
// packed in pairs, are the operands of dV += P^T dO and dK += dS^T Q. Only dS goes through shared
// memory, for dQ.
#include "common/kernel/host.hpp"

namespace flashladder::stage_32 {
namespace {

// The four lanes of a quad have keys quad and quad + 8 of 16, each rows 2 quad_lane and 2 quad_lane + 1 of
// every 8.
constexpr int row_lanes = 4;
constexpr int helpers = 128;  // threads of a block of the kernels that go before and after

/// What a block works on. A warp takes 16 keys of a tile, and all rows. Where dK and dV of 16 keys are more
/// than its registers hold, two warps share the keys: one has S, P and dV, the other dP, dS and dK.
struct Tile {
  int Br;     ///< Rows of a tile of Q and of dO.
  int Bc;     ///< Keys of a tile of K and V: 16 * warps / share.
  int warps;  ///< Of a block.
  int share;  ///< Warps that share their keys, 1 or 2.
};
template <int d>
constexpr Tile tile_of = d <= 128 ? Tile{32, 64, 4, 1} : Tile{32, 32, 4, 2};

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d, int Br, int Bc, int share>
struct Shared {
  static constexpr int K = 0;                 // [Bc, d]
  static constexpr int V = K + 2 * Bc * d;    // [Bc, d]
  static constexpr int dS = V + 2 * Bc * d;   // [Bc, Br], transposed
  static constexpr int P = dS + 2 * Bc * Br;  // [Bc, Br] in fp32, transposed, where two warps share keys
  static constexpr int Q = P + 4 * (share - 1) * Bc * Br;  // [Br, d]
  static constexpr int dO = Q + 2 * Br * d;                // [Br, d]
  static constexpr int L = dO + 2 * Br * d;                // [Br] in fp32
  static constexpr int D = L + 4 * Br, bytes = D + 4 * Br;
};

/// X^T += A B^T, for 16 * frags keys from k0 on and 8 * row_chunks rows from `row` on.
template <class T, int frags, int row_chunks, int keys, int all, int d>
__device__ __forceinline__ void product(f32 (&x)[frags][row_chunks][4],  // [16 * frags, 8 * row_chunks]
                                        smem_tile<T, keys, d>& A,        // K or V
                                        smem_tile<T, all, d>& B,         // Q or dO
                                        int k0, int row, int lane) {
  // lab: the products: 16 columns of d at a time, a fragment of A for 16 keys, one of B for 8 rows
#pragma unroll
  for (int k = 0; k < d; k += 16) {
    std::uint32_t a[frags][4];
#pragma unroll
    for (int f = 0; f < frags; ++f) ldmatrix_x4<T>(a[f], A.at(k0 + 16 * f + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int c = 0; c < row_chunks; c += 2) {
      std::uint32_t b[4];
      ldmatrix_x4<T>(b, B.at(row + 8 * c + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
#pragma unroll
      for (int f = 0; f < frags; ++f) {
        mma_m16n8k16<T>(x[f][c], a[f], {b[0], b[1]});
        mma_m16n8k16<T>(x[f][c + 1], a[f], {b[2], b[3]});
      }
    }
  }
  // end of lab
}

/// C += A B, for A in registers and 16 rows and 8 * column_chunks columns of B, from (row, column) on.
template <class T, int frags, int column_chunks, int all, int d>
__device__ __forceinline__ void add_product(
    f32 (&c)[frags][column_chunks][4],   // [16 * frags, 8 * column_chunks]
    const std::uint32_t (&a)[frags][4],  // [16 * frags, 16]
    smem_tile<T, all, d>& B, int row, int column, int lane) {
#pragma unroll
  for (int x = 0; x < column_chunks; x += 2) {
    std::uint32_t b[4];
    ldmatrix_x4_trans<T>(b, B.at(row + lane % 16, column + 8 * x + lane / 16 * 8));
#pragma unroll
    for (int f = 0; f < frags; ++f) {
      mma_m16n8k16<T>(c[f][x], a[f], {b[0], b[1]});
      mma_m16n8k16<T>(c[f][x + 1], a[f], {b[2], b[3]});
    }
  }
}

/// P = exp(S - L).
template <int row_chunks, int all>
__device__ __forceinline__ void probabilities(f32 (&x)[row_chunks][4],    // S^T, then P^T
                                              smem_tile<f32, all, 1>& L,  // of all rows
                                              float scale, int row, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const int r = row + 8 * c + 2 * (lane % row_lanes);  // this lane has rows r and r + 1
    const f32 L_rows[2] = {L[r], L[r + 1]};
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] = expf(scale * x[c][e] - finite(L_rows[e % 2]));
  }
}

/// P = 0 where a row, from row i0 on, does not see a key, from key j0 on.
template <int row_chunks>
__device__ __forceinline__ void mask(f32 (&p)[row_chunks][4],  // P^T
                                     const BackwardSizes& n, int i0, int j0, int lane) {
  const int quad = lane / row_lanes, quad_lane = lane % row_lanes;
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // lab: the row i and the key j of element e of chunk c of the rows
      // given: const int i = i0, j = j0;
      const int i = i0 + 8 * c + 2 * quad_lane + e % 2, j = j0 + quad + e / 2 * 8;
      // end of lab
      if (j >= n.visible_keys(i)) p[c][e] = 0.f;
    }
  }
}

/// dP - D.
template <int row_chunks, int all>
__device__ __forceinline__ void subtract(f32 (&x)[row_chunks][4],    // dP^T, then dP^T - D
                                         smem_tile<f32, all, 1>& D,  // of all rows
                                         int row, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const int r = row + 8 * c + 2 * (lane % row_lanes);
    const f32 D_rows[2] = {D[r], D[r + 1]};
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] -= D_rows[e % 2];
  }
}

/// dS = P * (dP - D), element by element.
template <int row_chunks>
__device__ __forceinline__ void multiply(f32 (&x)[row_chunks][4],          // dP^T - D, then dS^T
                                         const f32 (&p)[row_chunks][4]) {  // P^T
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] *= p[c][e];
  }
}

/// P^T goes to the other warp, lane by lane: to row `place` of P and those after it, 16 x 8 numbers in
/// each.
template <int row_chunks, int all>
__device__ __forceinline__ void store_P(smem_tile<f32, all, 128>& P, const f32 (&p)[row_chunks][4],
                                        int place, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c)
    store4(P.at(place + c, 4 * lane), make_float4(p[c][0], p[c][1], p[c][2], p[c][3]));
}

/// As multiply, by the P^T that the other warp has stored.
template <int row_chunks, int all>
__device__ __forceinline__ void multiply_stored(f32 (&x)[row_chunks][4],  // dP^T - D, then dS^T
                                                smem_tile<f32, all, 128>& P, int place, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const float4 p = load4(P.at(place + c, 4 * lane));
    x[c][0] *= p.x, x[c][1] *= p.y, x[c][2] *= p.z, x[c][3] *= p.w;
  }
}

/// P^T or dS^T of chunks c and c + 1 of the rows, rounded: the operand A of the product with dO or Q.
template <class T, int row_chunks>
__device__ __forceinline__ void round_chunks(std::uint32_t (&a)[4],  // [16, 16]
                                             const f32 (&x)[row_chunks][4], int c) {
  // lab: the four registers of this lane
#pragma unroll
  for (int e = 0; e < 4; ++e) a[e] = round_pair<T>(x[c + e / 2][e % 2 * 2], x[c + e / 2][e % 2 * 2 + 1]);
  // end of lab
}

/// dS^T of 16 keys from k0 on and 16 rows from `row` on goes to shared memory: dQ needs that of all warps.
template <class T, int Bc, int Br>
__device__ __forceinline__ void store_dS(smem_tile<T, Bc, Br>& dS,     // dS^T
                                         const std::uint32_t (&a)[4],  // [16, 16]
                                         int k0, int row, int lane) {
  const int quad = lane / row_lanes, quad_lane = lane % row_lanes;
#pragma unroll
  for (int e = 0; e < 4; ++e)
    store_pair(dS.at(k0 + quad + e % 2 * 8, row + e / 2 * 8 + 2 * quad_lane), a[e]);
}

/// dS of 16 rows from `row` on and 16 keys from k0 on: the operand A of the product with K.
template <class T, int Bc, int Br>
__device__ __forceinline__ void load_dS(std::uint32_t (&a)[4],     // [16, 16]
                                        smem_tile<T, Bc, Br>& dS,  // dS^T
                                        int row, int k0, int lane) {
  ldmatrix_x4_trans<T>(a, dS.at(k0 + lane % 8 + lane / 16 * 8, row + lane / 8 % 2 * 8));
}

/// A warp for each row: D = rowsum(dO * O), and dQ_sum = 0, to which the blocks of all tiles of keys add.
template <class T, int d>
__global__ void __launch_bounds__(helpers) prepare(gmem<const T> Og,   // [batch, q_heads, Nq, d]
                                                   gmem<const T> dOg,  // [batch, q_heads, Nq, d]
                                                   gmem<f32> Dg,       // [batch, q_heads, Nq]
                                                   gmem<f32> dQ_sumg,  // [batch, q_heads, Nq, d]
                                                   BackwardSizes n) {
  const int i = blockIdx.x * (helpers / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
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

template <class T, int d, int Br, int Bc, int warps, int share>
__global__ void __launch_bounds__(32 * warps) fa2_backward(
    gmem<const T> Qg,    // [batch, q_heads, Nq, d]
    gmem<const T> Kg,    // [batch, kv_heads, Nk, d]
    gmem<const T> Vg,    // [batch, kv_heads, Nk, d]
    gmem<const T> dOg,   // [batch, q_heads, Nq, d]
    gmem<const f32> Lg,  // [batch, q_heads, Nq]
    gmem<const f32> Dg,  // [batch, q_heads, Nq]
    gmem<f32> dQ_sumg,   // [batch, q_heads, Nq, d], to which the blocks of all tiles of keys add
    gmem<T> dKg,         // [batch, kv_heads, Nk, d]
    gmem<T> dVg,         // [batch, kv_heads, Nk, d]
    BackwardSizes n) {
  constexpr int threads = 32 * warps, turns = 2 / share;
  // The warps divide dQ of a tile, [Br, d], into blocks of columns, and each of them into rows.
  constexpr int blocks = 2, row_frags = Br * blocks / (16 * warps), column_chunks = d / 8 / blocks;
  using At = Shared<d, Br, Bc, share>;
  auto&& K = dynamic_tile<T, Bc, d, "K">(At::K);
  auto&& V = dynamic_tile<T, Bc, d, "V">(At::V);
  auto&& Q = dynamic_tile<T, Br, d, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, Br, d, "dO">(At::dO);
  auto&& L = dynamic_tile<f32, Br, 1, "L">(At::L);
  auto&& D = dynamic_tile<f32, Br, 1, "D">(At::D);
  auto&& dS = dynamic_tile<T, Bc, Br, "dS">(At::dS);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / row_lanes,
            quad_lane = lane % row_lanes;
  // Its keys of a tile. Where two warps share them, the second half of the warps has dP, dS and dK: each of
  // the four schedulers of a multiprocessor then has warps of both kinds.
  const int k0 = warp % (warps / share) * 16;
  const bool second = warp >= warps / 2;
  const int r0 = warp / blocks * (16 * row_frags),
            column0 = warp % blocks * (8 * column_chunks);  // its rows and columns of dQ
  const int j0 = blockIdx.x * Bc, kv_head = blockIdx.y, b = blockIdx.z;

  const int first = n.causal ? j0 + n.Nq - n.Nk : 0;  // the first row that sees key j0
  load_tile<d, threads>(K, Kg + n.K.at(b, kv_head), n.K.row, j0, n.Nk);
  load_tile<d, threads>(V, Vg + n.V.at(b, kv_head), n.V.row, j0, n.Nk);
  // dV and dK as mma has them: of one fragment, of 16 keys. Where two warps share the keys, one of them.
  f32 sum[turns][1][d / 8][4] = {};
  // The query heads of a group add to the same dK and dV, one after the other.
  for (int h = kv_head * n.group; h < (kv_head + 1) * n.group; ++h) {
    const gmem<const T> Qh = Qg + n.Q.at(b, h), dOh = dOg + n.dO.at(b, h);
    const gmem<const f32> Lh = Lg + n.row0(b, h), Dh = Dg + n.row0(b, h);
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
      f32 p[1][Br / 8][4] = {};
#pragma unroll
      for (int turn = 0; turn < turns; ++turn) {
        const bool of_dS = turns == 2 ? turn == 1 : second;
        f32 x[1][Br / 8][4] = {};                                // S^T, then P^T; or dP^T, then dS^T
        product(x, of_dS ? V : K, of_dS ? dO : Q, k0, 0, lane);  // S^T = K Q^T, or dP^T = V dO^T
        if (!of_dS) {
          probabilities(x[0], L, n.scale, 0, lane);
          if (masked) mask(x[0], n, i0, j0 + k0, lane);
          probe_transposed("P", n.head(b, h), i0, j0 + k0, x[0], lane);
        } else {
          subtract(x[0], D, 0, lane);
        }
        // dS = P * (dP - D), with the P of the turn before, or of the other warp
        if constexpr (share == 1) {
          if (!of_dS)
            memcpy(p, x, sizeof p);
          else
            multiply(x[0], p[0]);
        } else {
          auto&& P = dynamic_tile<f32, Bc / 16 * (Br / 8), 128, "P">(At::P);
          const int place = k0 / 16 * (Br / 8);
          if (!of_dS) store_P(P, x[0], place, lane);
          __syncthreads();  // P is read: the warp that has it must have written it
          if (of_dS) multiply_stored(x[0], P, place, lane);
        }
#pragma unroll
        for (int c = 0; c < Br / 8; c += 2) {
          std::uint32_t a[1][4];
          round_chunks<T>(a[0], x[0], c);
          // dV += P^T dO, or dK += dS^T Q
          add_product(sum[turn], a, of_dS ? Q : dO, 8 * c, 0, lane);
          if (of_dS) store_dS(dS, a[0], k0, 8 * c, lane);
        }
      }
      // lab: dQ of this warp's rows and columns, all keys of the tile, once dS is complete
      // given: f32 dq[row_frags][column_chunks][4] = {};
      // dS is read, Q, dO, L and D change: dS must be complete, all warps have read the others.
      __syncthreads();

      // dQ += dS K: this warp's rows and columns, all keys
      f32 dq[row_frags][column_chunks][4] = {};
#pragma unroll
      for (int k = 0; k < Bc; k += 16) {
        std::uint32_t ds[row_frags][4];
#pragma unroll
        for (int f = 0; f < row_frags; ++f) load_dS(ds[f], dS, r0 + 16 * f, k, lane);
        add_product(dq, ds, K, k, column0, lane);
      }
      // end of lab
      const gmem<f32> dQ_sum = dQ_sumg + n.row0(b, h) * d;
#pragma unroll
      for (int f = 0; f < row_frags; ++f) {
#pragma unroll
        for (int x = 0; x < column_chunks; ++x) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = i0 + r0 + 16 * f + quad + e / 2 * 8, c = column0 + 8 * x + 2 * quad_lane + e % 2;
            if (i < n.Nq) atomic_add(dQ_sum + (i * std::int64_t{d} + c), dq[f][x][e]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    const bool of_dS = turns == 2 ? turn == 1 : second;
    const gmem<T> out = of_dS ? dKg + n.dK.at(b, kv_head) : dVg + n.dV.at(b, kv_head);
    const std::int64_t row = of_dS ? n.dK.row : n.dV.row;
#pragma unroll
    for (int x = 0; x < d / 8; ++x) {
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const int j = j0 + k0 + quad + a * 8;
        if (j >= n.Nk) continue;
        f32 low = sum[turn][0][x][2 * a], high = sum[turn][0][x][2 * a + 1];
        if (of_dS) low *= n.scale, high *= n.scale;  // dS had no scale
        store_pair(out + (j * row + 8 * x + 2 * quad_lane), round_pair<T>(low, high));
      }
    }
  }
}

/// A warp for each row: dQ = scale * dQ_sum, in 16 bits.
template <class T, int d>
__global__ void __launch_bounds__(helpers) convert(gmem<const f32> dQ_sumg,  // [batch, q_heads, Nq, d]
                                                   gmem<T> dQg,              // [batch, q_heads, Nq, d]
                                                   BackwardSizes n) {
  const int i = blockIdx.x * (helpers / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n.Nq) return;
  const int h = blockIdx.y, b = blockIdx.z;
  const gmem<const f32> dQ_sum = dQ_sumg + (n.row0(b, h) + i) * d;
  const gmem<T> dQ = dQg + (n.dQ.at(b, h) + i * n.dQ.row);
  for (int c = 2 * lane; c < d; c += 64)
    store_pair(dQ + c, round_pair<T>(n.scale * dQ_sum[c], n.scale * dQ_sum[c + 1]));
}

void backward(const Backward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    for_head_dim<T, 32, 64, 96, 128, 256>(f.problem.d, [&](auto d) {
      constexpr Tile tile = tile_of<d>;
      const BackwardBuffers<T> x(f);
      const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch;
      const unsigned Tc = tiles(f.problem.Nk, tile.Bc);
      const dim3 row_blocks(tiles(f.problem.Nq, helpers / 32), heads, batch);
      const std::int64_t rows = x.L.elements();
      ExtraBuffer D(f, "D", rows), dQ_sum(f, "dQ_sum", rows * d);
      launch("prepare", prepare<T, d>, row_blocks, helpers, 0, x.O, x.dO, D, dQ_sum, x.sizes);
      launch("fa2_backward", fa2_backward<T, d, tile.Br, tile.Bc, tile.warps, tile.share>,
             dim3(Tc, kv_heads, batch), 32 * tile.warps, Shared<d, tile.Br, tile.Bc, tile.share>::bytes,
             x.Q, x.K, x.V, x.dO, x.L, D, dQ_sum, x.dK, x.dV, x.sizes);
      launch("convert", convert<T, d>, row_blocks, helpers, 0, dQ_sum, x.dQ, x.sizes);
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
