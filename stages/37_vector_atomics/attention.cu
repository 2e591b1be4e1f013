// Vector atomics for the backward pass: dQ is added to in the order in which a warp has it, four numbers by
// one instruction. A kernel that follows puts it into rows.
#include "common/kernel/host.hpp"
#include "common/kernel/swizzle.hpp"
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/named_barrier.hpp"

namespace flashladder::stage_37 {
namespace {

// The four lanes of a quad have keys quad and quad + 8 of 16, each rows 2 quad_lane and 2 quad_lane + 1 of
// every 8.
constexpr int row_lanes = 4;
constexpr int helpers = 128;  // threads of a block of the kernels that go before and after
constexpr float log2_e = 1.4426950408889634f;

/// What a block works on. A warp takes 16 or 32 keys of a tile, and all rows. Where dK and dV of them are
/// more than its registers hold, two warps share the keys: one has S, P and dV, the other dP, dS and dK.
struct Tile {
  int Br;           ///< Rows of a tile of Q and of dO.
  int Bc;           ///< Keys of a tile of K and V.
  int warps;        ///< Of a block.
  int share;        ///< Warps that share their keys, 1 or 2.
  int num_buffers;  ///< Buffers of Q and of dO: 2, or 1 where shared memory holds no more.
};
template <int d>
constexpr Tile tile_of = d <= 64    ? Tile{32, 128, 4, 1, 2}
                         : d <= 128 ? Tile{32, 64, 4, 2, 2}
                                    : Tile{32, 32, 4, 2, 1};

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d, int Br, int Bc, int share, int num_buffers>
struct Shared {
  static constexpr int K = 0;                 // [Bc, d]
  static constexpr int V = K + 2 * Bc * d;    // [Bc, d]
  static constexpr int dS = V + 2 * Bc * d;   // [Bc, Br], transposed
  static constexpr int P = dS + 2 * Bc * Br;  // [Bc, Br] in fp32, transposed, where two warps share keys
  static constexpr int Q = P + 4 * (share - 1) * Bc * Br;  // [num_buffers * Br, d], as dO
  static constexpr int dO = Q + 2 * num_buffers * Br * d;
  static constexpr int L2 = dO + 2 * num_buffers * Br * d;
  static constexpr int D = L2 + 4 * num_buffers * Br, bytes = D + 4 * num_buffers * Br;
};

/// X^T += A B^T, for 16 * frags keys from k0 on and 8 * row_chunks rows from `row` on.
template <class T, int frags, int row_chunks, int keys, int all, int d>
__device__ __forceinline__ void product(f32 (&x)[frags][row_chunks][4],  // [16 * frags, 8 * row_chunks]
                                        smem_tile<T, keys, d>& A,        // K or V
                                        smem_tile<T, all, d>& B,         // Q or dO
                                        int k0, int row, int lane) {
  constexpr Swizzle<d> swizzle;  // repeats after 8 rows
#pragma unroll
  for (int k = 0; k < d; k += 16) {
    std::uint32_t a[frags][4];
#pragma unroll
    for (int f = 0; f < frags; ++f)
      ldmatrix_x4<T>(a[f], A.at(k0 + 16 * f + lane % 16, swizzle(lane, k + lane / 16 * 8)));
#pragma unroll
    for (int c = 0; c < row_chunks; c += 2) {
      std::uint32_t b[4];
      ldmatrix_x4<T>(b, B.at(row + 8 * c + lane % 8 + lane / 16 * 8, swizzle(lane, k + lane / 8 % 2 * 8)));
#pragma unroll
      for (int f = 0; f < frags; ++f) {
        mma_m16n8k16<T>(x[f][c], a[f], {b[0], b[1]});
        mma_m16n8k16<T>(x[f][c + 1], a[f], {b[2], b[3]});
      }
    }
  }
}

/// C += A B, for A in registers and 16 rows and 8 * column_chunks columns of B, from (row, column) on.
template <class T, int frags, int column_chunks, int all, int d>
__device__ __forceinline__ void add_product(
    f32 (&c)[frags][column_chunks][4],   // [16 * frags, 8 * column_chunks]
    const std::uint32_t (&a)[frags][4],  // [16 * frags, 16]
    smem_tile<T, all, d>& B, int row, int column, int lane) {
  constexpr Swizzle<d> swizzle;
#pragma unroll
  for (int x = 0; x < column_chunks; x += 2) {
    std::uint32_t b[4];
    ldmatrix_x4_trans<T>(b, B.at(row + lane % 16, swizzle(lane, column + 8 * x + lane / 16 * 8)));
#pragma unroll
    for (int f = 0; f < frags; ++f) {
      mma_m16n8k16<T>(c[f][x], a[f], {b[0], b[1]});
      mma_m16n8k16<T>(c[f][x + 1], a[f], {b[2], b[3]});
    }
  }
}

/// P = exp(S - L), as a power of 2.
template <int row_chunks, int all>
__device__ __forceinline__ void probabilities(f32 (&x)[row_chunks][4],     // S^T, then P^T
                                              smem_tile<f32, all, 1>& L2,  // of all rows
                                              float scale_log2, int row, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const int r = row + 8 * c + 2 * (lane % row_lanes);  // this lane has rows r and r + 1
    const f32 L2_rows[2] = {L2[r], L2[r + 1]};
#pragma unroll
    for (int e = 0; e < 4; ++e) x[c][e] = ex2_approx(fmaf(x[c][e], scale_log2, -L2_rows[e % 2]));
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
      const int i = i0 + 8 * c + 2 * quad_lane + e % 2, j = j0 + quad + e / 2 * 8;
      if (j >= n.visible_keys(i)) p[c][e] = 0.f;
    }
  }
}

/// What the sums of products begin with: S with 0, dP with -D, so that it becomes dP - D.
template <int row_chunks, int all>
__device__ __forceinline__ void begin_sums(f32 (&x)[row_chunks][4],
                                           smem_tile<f32, all, 1>& D,  // of all rows
                                           bool of_dS, int row, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const int r = row + 8 * c + 2 * (lane % row_lanes);
    f32 even = 0.f, odd = 0.f;
    if (of_dS) even = -D[r], odd = -D[r + 1];
    x[c][0] = x[c][2] = even, x[c][1] = x[c][3] = odd;
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
#pragma unroll
  for (int e = 0; e < 4; ++e) a[e] = round_pair<T>(x[c + e / 2][e % 2 * 2], x[c + e / 2][e % 2 * 2 + 1]);
}

/// dS^T of 16 keys from k0 on and 16 rows from `row` on goes to shared memory: dQ needs that of all warps.
template <class T, int Bc, int Br>
__device__ __forceinline__ void store_dS(smem_tile<T, Bc, Br>& dS,     // dS^T
                                         const std::uint32_t (&a)[4],  // [16, 16]
                                         int k0, int row, int lane) {
  constexpr Swizzle<Br> swizzle;
  const int quad = lane / row_lanes, quad_lane = lane % row_lanes;
#pragma unroll
  for (int e = 0; e < 4; ++e)
    store_pair(dS.at(k0 + quad + e % 2 * 8, swizzle(quad, row + e / 2 * 8) + 2 * quad_lane), a[e]);
}

/// dS of 16 rows from `row` on and 16 keys from k0 on: the operand A of the product with K.
template <class T, int Bc, int Br>
__device__ __forceinline__ void load_dS(std::uint32_t (&a)[4],     // [16, 16]
                                        smem_tile<T, Bc, Br>& dS,  // dS^T
                                        int row, int k0, int lane) {
  constexpr Swizzle<Br> swizzle;
  ldmatrix_x4_trans<T>(a, dS.at(k0 + lane % 8 + lane / 16 * 8, swizzle(lane, row + lane / 8 % 2 * 8)));
}

/// A few lanes for each row: D = rowsum(dO * O), L2 = L log2(e), and dQ_sum = 0 to begin with.
template <class T, int d>
__global__ void __launch_bounds__(helpers) prepare(gmem<const T> Og,    // [batch, q_heads, Nq, d]
                                                   gmem<const T> dOg,   // [batch, q_heads, Nq, d]
                                                   gmem<const f32> Lg,  // [batch, q_heads, Nq]
                                                   gmem<f32> Dg,        // [batch, q_heads, Nq]
                                                   gmem<f32> L2g,       // [batch, q_heads, Nq]
                                                   gmem<f32> dQ_sumg,   // [batch, q_heads, padded_Nq, d]
                                                   BackwardSizes n, int padded_Nq) {
  constexpr int lanes = d % 64 == 0 ? 8 : 4, rows = helpers / lanes;  // of a row, and of a block
  const int first = blockIdx.x * rows, i = first + threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int h = blockIdx.y, b = blockIdx.z;
  f32 D = 0.f;
  if (i < n.Nq) {
    const gmem<const T> O = Og + (n.O.at(b, h) + i * n.O.row), dO = dOg + (n.dO.at(b, h) + i * n.dO.row);
#pragma unroll
    for (int c = 8 * lane; c < d; c += 8 * lanes) {
      f32 o[8], grad[8];
      load_eight<T>(o, O + c);
      load_eight<T>(grad, dO + c);
#pragma unroll
      for (int e = 0; e < 8; ++e) D += grad[e] * o[e];
    }
  }
  D = lanes_sum<lanes>(D);
  if (lane == 0 && i < n.Nq) {
    Dg[n.row0(b, h) + i] = D;
    L2g[n.row0(b, h) + i] = finite(Lg[n.row0(b, h) + i]) * log2_e;  // where no key is seen, all are masked
  }
  // lab: zeros in dQ_sum, for all rows of this block
  const gmem<f32> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + first) * d;
#pragma unroll
  for (int e = 4 * threadIdx.x; e < rows * d; e += 4 * helpers)
    store4(dQ_sum + e, make_float4(0.f, 0.f, 0.f, 0.f));
  // end of lab
}

template <class T, int d, int Br, int Bc, int warps, int share, int num_buffers>
__global__ void __launch_bounds__(32 * warps) fa2_backward(
    gmem<const T> Qg,     // [batch, q_heads, Nq, d]
    gmem<const T> Kg,     // [batch, kv_heads, Nk, d]
    gmem<const T> Vg,     // [batch, kv_heads, Nk, d]
    gmem<const T> dOg,    // [batch, q_heads, Nq, d]
    gmem<const f32> L2g,  // [batch, q_heads, Nq]
    gmem<const f32> Dg,   // [batch, q_heads, Nq]
    gmem<f32> dQ_sumg,    // [batch, q_heads, padded_Nq, d], 16 x 8 numbers after another as mma has them
    gmem<T> dKg,          // [batch, kv_heads, Nk, d]
    gmem<T> dVg,          // [batch, kv_heads, Nk, d]
    BackwardSizes n, int padded_Nq) {
  constexpr int threads = 32 * warps, turns = 2 / share;
  constexpr int key_frags = Bc * share / (16 * warps);  // fragments of 16 keys of a warp
  // The warps divide dQ of a tile, [Br, d], into blocks of columns, and each of them into rows.
  constexpr int blocks = 2, row_frags = Br * blocks / (16 * warps), column_chunks = d / 8 / blocks;
  using At = Shared<d, Br, Bc, share, num_buffers>;
  auto&& K = dynamic_tile<T, Bc, d, "K">(At::K);
  auto&& V = dynamic_tile<T, Bc, d, "V">(At::V);
  auto&& Q = dynamic_tile<T, num_buffers * Br, d, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, num_buffers * Br, d, "dO">(At::dO);
  auto&& L2 = dynamic_tile<f32, num_buffers * Br, 1, "L2">(At::L2);
  auto&& D = dynamic_tile<f32, num_buffers * Br, 1, "D">(At::D);
  auto&& dS = dynamic_tile<T, Bc, Br, "dS">(At::dS);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / row_lanes,
            quad_lane = lane % row_lanes;
  // Its keys of a tile. Where two warps share them, the second half of the warps has dP, dS and dK: each of
  // the four schedulers of a multiprocessor then has warps of both kinds.
  const int k0 = warp % (warps / share) * (16 * key_frags);
  const bool second = warp >= warps / 2;
  const int r0 = warp / blocks * (16 * row_frags),
            column0 = warp % blocks * (8 * column_chunks);  // its rows and columns of dQ
  constexpr Swizzle<d> swizzle;
  const int j0 = blockIdx.x * Bc, kv_head = blockIdx.y, b = blockIdx.z;

  const auto copy = [&](int h, int i0, int to) {
    load_tile_async<Br, d, threads>(Q, to * Br, Qg + n.Q.at(b, h), n.Q.row, i0, n.Nq, swizzle);
    load_tile_async<Br, d, threads>(dO, to * Br, dOg + n.dO.at(b, h), n.dO.row, i0, n.Nq, swizzle);
    if (const int r = threadIdx.x % Br;
        threadIdx.x < 2 * Br) {  // 0 past the end, as in dO: it adds nothing
      const bool of_D = threadIdx.x >= Br;
      cp_async_4B<f32>((of_D ? D : L2).at(to * Br + r, 0), (of_D ? Dg : L2g) + (n.row0(b, h) + i0 + r),
                       i0 + r < n.Nq);
    }
    cp_async_commit();
  };
  // The tiles of rows that see key j0, of all query heads of the group one after the other
  const int first = n.causal && j0 + n.Nq > n.Nk ? (j0 + n.Nq - n.Nk) / Br * Br : 0;
  load_tile_async<Bc, d, threads>(K, 0, Kg + n.K.at(b, kv_head), n.K.row, j0, n.Nk, swizzle);
  load_tile_async<Bc, d, threads>(V, 0, Vg + n.V.at(b, kv_head), n.V.row, j0, n.Nk, swizzle);
  copy(kv_head * n.group, first, 0);
  // dV and dK as mma has them. Where two warps share the keys, one of them.
  f32 sum[turns][key_frags][d / 8][4] = {};
  for (int h = kv_head * n.group, i0 = first, buffer = 0; h < (kv_head + 1) * n.group;) {
    const bool last = i0 + Br >= n.Nq;  // of this head
    const int next_h = last ? h + 1 : h, next_i0 = last ? first : i0 + Br,
              next_buffer = num_buffers - 1 - buffer;
    const bool more = next_h < (kv_head + 1) * n.group;
    cp_async_wait<0>();
    // K, V and the tile of rows are read, dS and the other buffers change: the copies of all threads must
    // have arrived, all warps have read the last dS and what was in those buffers.
    __syncthreads();
    if (num_buffers == 2 && more) copy(next_h, next_i0, next_buffer);
    const bool masked = j0 + Bc > n.visible_keys(i0);  // the first row sees the least
    count_tile(masked);

    const int row = buffer * Br;  // where its rows begin in the buffers
    // First S^T = K Q^T, P = exp(S - L) and dV += P^T dO, then dP^T = V dO^T, dS = P * (dP - D) and
    // dK += dS^T Q: the same products with other operands. Where two warps share the keys, each has one
    // turn.
    f32 p[key_frags][Br / 8][4] = {};
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) {
      const bool of_dS = turns == 2 ? turn == 1 : second;
      f32 x[key_frags][Br / 8][4];  // S^T, then P^T; or dP^T - D, then dS^T
#pragma unroll
      for (int f = 0; f < key_frags; ++f) begin_sums(x[f], D, of_dS, row, lane);
      product(x, of_dS ? V : K, of_dS ? dO : Q, k0, row, lane);  // S^T = K Q^T, or V dO^T - D
#pragma unroll
      for (int f = 0; f < key_frags; ++f) {
        if (!of_dS) {
          probabilities(x[f], L2, n.scale * log2_e, row, lane);
          if (masked) mask(x[f], n, i0, j0 + k0 + 16 * f, lane);
          probe_transposed("P", n.head(b, h), i0, j0 + k0 + 16 * f, x[f], lane);
        }
      }
      // dS = P * (dP - D), with the P of the turn before, or of the other warp
      if constexpr (share == 1) {
        if (!of_dS) memcpy(p, x, sizeof p);
#pragma unroll
        for (int f = 0; f < key_frags; ++f) {
          if (of_dS) multiply(x[f], p[f]);
        }
      } else {
        auto&& P = dynamic_tile<f32, Bc / 16 * (Br / 8), 128, "P">(At::P);
        const int place = k0 / 16 * (Br / 8);
#pragma unroll
        for (int f = 0; f < key_frags; ++f) {
          if (!of_dS) store_P(P, x[f], place + f * (Br / 8), lane);
        }
        named_barrier_sync(1 + warp % (warps / 2), 64);  // P is read: it must have been written
#pragma unroll
        for (int f = 0; f < key_frags; ++f) {
          if (of_dS) multiply_stored(x[f], P, place + f * (Br / 8), lane);
        }
      }
#pragma unroll
      for (int c = 0; c < Br / 8; c += 2) {
        std::uint32_t a[key_frags][4];
#pragma unroll
        for (int f = 0; f < key_frags; ++f) round_chunks<T>(a[f], x[f], c);
        // dV += P^T dO, or dK += dS^T Q
        add_product(sum[turn], a, of_dS ? Q : dO, row + 8 * c, 0, lane);
#pragma unroll
        for (int f = 0; f < key_frags; ++f) {
          if (of_dS) store_dS(dS, a[f], k0 + 16 * f, 8 * c, lane);
        }
      }
    }
    // dS is read, and with one buffer the rows change: all warps must have written dS, and read the rows.
    __syncthreads();
    if (num_buffers == 1 && more) copy(next_h, next_i0, next_buffer);

    // dQ += dS K: this warp's rows and columns, all keys
    f32 dq[row_frags][column_chunks][4] = {};
#pragma unroll
    for (int k = 0; k < Bc; k += 16) {
      std::uint32_t ds[row_frags][4];
#pragma unroll
      for (int f = 0; f < row_frags; ++f) load_dS(ds[f], dS, r0 + 16 * f, k, lane);
      add_product(dq, ds, K, k, column0, lane);
    }
    // lab: add this warp's dQ to dQ_sum, four numbers by one instruction
    const gmem<f32> dQ = dQ_sumg + (n.head(b, h) * padded_Nq + i0 + r0) * d;
#pragma unroll
    for (int f = 0; f < row_frags; ++f) {
#pragma unroll
      for (int x = 0; x < column_chunks; ++x)
        atomic_add4(dQ + (16 * f * d + (column0 / 8 + x) * 128 + 4 * lane),
                    make_float4(dq[f][x][0], dq[f][x][1], dq[f][x][2], dq[f][x][3]));
    }
    // end of lab
    h = next_h, i0 = next_i0, buffer = next_buffer;
  }
  // dK goes to the place of this warp's keys of K, dV to that of V, and from there to memory 16 bytes a
  // lane, whole rows at a time.
  __syncthreads();  // K and V change: all warps must have read them
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    const bool of_dS = turns == 2 ? turn == 1 : second;
    smem_tile<T, Bc, d>& dX = of_dS ? K : V;
#pragma unroll
    for (int x = 0; x < d / 8; ++x) {
#pragma unroll
      for (int a = 0; a < 2 * key_frags; ++a) {
        f32 low = sum[turn][a / 2][x][a % 2 * 2], high = sum[turn][a / 2][x][a % 2 * 2 + 1];
        if (of_dS) low *= n.scale, high *= n.scale;  // dS had no scale
        store_pair(dX.at(k0 + quad + a * 8, swizzle(quad, 8 * x) + 2 * quad_lane),
                   round_pair<T>(low, high));
      }
    }
    __syncwarp();  // each row is read by lanes that have not written it: all must have
    const gmem<T> out = of_dS ? dKg + n.dK.at(b, kv_head) : dVg + n.dV.at(b, kv_head);
    const std::int64_t row = of_dS ? n.dK.row : n.dV.row;
#pragma unroll 4
    for (int e = lane; e < 16 * key_frags * (d / 8); e += 32) {
      const int key = k0 + e / (d / 8), c = e % (d / 8) * 8, j = j0 + key;
      store_16B<T>(out + (j * row + c), dX.at(key, swizzle(key, c)), j < n.Nk);
    }
  }
}

/// dQ = scale * dQ_sum, in 16 bits and in rows again: a thread for 8 columns of rows quad and quad + 8
/// of 16.
template <class T, int d>
__global__ void __launch_bounds__(helpers)
    convert(gmem<const f32> dQ_sumg,  // [batch, q_heads, padded_Nq, d]
            gmem<T> dQg,              // [batch, q_heads, Nq, d]
            BackwardSizes n, int padded_Nq) {
  const int e = blockIdx.x * helpers + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int i0 = e / d * 16, x = e % d / 8, quad = e % 8;
  if (i0 >= n.Nq) return;
  // lab: 8 columns of rows i0 + quad and i0 + quad + 8, from 8 x on: dQ = scale * dQ_sum, in rows
  const gmem<const f32> from = dQ_sumg + ((n.head(b, h) * padded_Nq + i0) * d + x * 128 + 16 * quad);
  f32 dq[2][8] = {};
#pragma unroll
  for (int quad_lane = 0; quad_lane < row_lanes; ++quad_lane) {
    const float4 of_lane = load4(from + 4 * quad_lane);
    dq[0][2 * quad_lane] = of_lane.x, dq[0][2 * quad_lane + 1] = of_lane.y;
    dq[1][2 * quad_lane] = of_lane.z, dq[1][2 * quad_lane + 1] = of_lane.w;
  }
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    const int i = i0 + quad + 8 * a;
#pragma unroll
    for (int c = 0; c < 8; ++c) dq[a][c] *= n.scale;
    if (i < n.Nq) store_eight<T>(dQg + (n.dQ.at(b, h) + i * n.dQ.row + 8 * x), dq[a]);
  }
  // end of lab
}

void backward(const Backward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    for_head_dim<T, 32, 64, 96, 128, 256>(f.problem.d, [&](auto d) {
      constexpr Tile tile = tile_of<d>;
      const BackwardBuffers<T> x(f);
      const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch;
      const unsigned Tc = tiles(f.problem.Nk, tile.Bc);
      const int padded_Nq = tile.Br * static_cast<int>(tiles(f.problem.Nq, tile.Br));  // of whole tiles
      const std::int64_t rows = x.L.elements();
      ExtraBuffer D(f, "D", rows), L2(f, "L2", rows),
          dQ_sum(f, "dQ_sum", heads * batch * std::int64_t{padded_Nq} * d);
      launch("prepare", prepare<T, d>,
             dim3(tiles(padded_Nq, helpers / (d % 64 == 0 ? 8 : 4)), heads, batch), helpers, 0, x.O, x.dO,
             x.L, D, L2, dQ_sum, x.sizes, padded_Nq);
      launch("fa2_backward", fa2_backward<T, d, tile.Br, tile.Bc, tile.warps, tile.share, tile.num_buffers>,
             dim3(Tc, kv_heads, batch), 32 * tile.warps,
             Shared<d, tile.Br, tile.Bc, tile.share, tile.num_buffers>::bytes, x.Q, x.K, x.V, x.dO, L2, D,
             dQ_sum, x.dK, x.dV, x.sizes, padded_Nq);
      launch("convert", convert<T, d>,
             dim3(tiles(tiles(f.problem.Nq, 16) * std::int64_t{d}, helpers), heads, batch), helpers, 0,
             dQ_sum, x.dQ, x.sizes, padded_Nq);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 37,
    .name = "vector_atomics",
    .title = "vector atomics",
    .idea = "dQ is added to in the order in which a warp has it, 16 bytes a lane",
    .claim = "atomic instructions for dQ / 4",
    .before = 36,
    .supports = {.dtypes = half_dtypes, .head_dims = half_head_dims},
    .backend = kernel_backend,
    .backward = backward,
};

}  // namespace flashladder::stage_37
