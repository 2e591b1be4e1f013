#pragma once
// The kernels of the backward passes of stages 71 to 81; attention.cu beside it explains its idea. Run-time
// compilation includes this file too, so it takes no header of the host. Its namespace has no name: one
// program may hold the kernels several times, for the emulator and for a GPU.
#include "common/kernel/column_blocks.hpp"
#include "common/kernel/device.hpp"
#include "common/kernel/swizzle.hpp"
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/named_barrier.hpp"
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_71 {
namespace {

// The four lanes of a quad have keys quad and quad + 8 of 16, each rows 2 quad_lane and 2 quad_lane + 1 of
// every 8.
constexpr int row_lanes = 4;
constexpr int helpers = 128;  // threads of a block of the kernels that go before and after
constexpr float log2_e = 1.4426950408889634f;

/// X^T += A B^T, for 16 * key_frags keys from k0 on and 8 * row_chunks rows from `row` on.
template <int unroll, class T, int key_frags, int row_chunks, int keys, int all, int d>
__device__ __forceinline__ void product(
    f32 (&x)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    smem_tile<T, keys, d>& A,            // K or V
    smem_tile<T, all, d>& B,             // Q or dO
    int k0, int row, int lane) {
  constexpr Swizzle<d> swizzle;  // repeats after 8 rows
#pragma unroll unroll
  for (int k = 0; k < d; k += 16) {
    std::uint32_t a[key_frags][4];
#pragma unroll
    for (int f = 0; f < key_frags; ++f) {
      const int key = k0 + 16 * f + lane % 16, column = k + lane / 16 * 8;
      ldmatrix_x4<T>(a[f], A.at(key, swizzle(lane, column)));
    }
#pragma unroll
    for (int c = 0; c < row_chunks; c += 2) {
      const int i = row + 8 * c + lane % 8 + lane / 16 * 8, column = k + lane / 8 % 2 * 8;
      std::uint32_t b[4];
      ldmatrix_x4<T>(b, B.at(i, swizzle(lane, column)));
#pragma unroll
      for (int f = 0; f < key_frags; ++f) {
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
    const int r = row + lane % 16;
    std::uint32_t b[4];
    ldmatrix_x4_trans<T>(b, B.at(r, swizzle(r, column + 8 * x + lane / 16 * 8)));
#pragma unroll
    for (int f = 0; f < frags; ++f) {
      mma_m16n8k16<T>(c[f][x], a[f], {b[0], b[1]});
      mma_m16n8k16<T>(c[f][x + 1], a[f], {b[2], b[3]});
    }
  }
}

/// What the sums of products begin with: S with 0, dP with -D, so that it becomes dP - D.
template <int key_frags, int row_chunks, int num_buffers, int Br>
__device__ __forceinline__ void begin_sums(
    f32 (&x)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    smem_tile<f32, num_buffers, Br>& D, bool of_dS, int buffer, int row, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    const int i = row + 8 * c + 2 * (lane % row_lanes);
    f32 odd = 0.f, even = 0.f;
    if (of_dS) even = -D(buffer, i), odd = -D(buffer, i + 1);
#pragma unroll
    for (int f = 0; f < key_frags; ++f) x[f][c][0] = x[f][c][2] = even, x[f][c][1] = x[f][c][3] = odd;
  }
}

/// P = exp(S - L), as a power of 2, for chunk c of the rows. (The loop over the chunks is left to the
/// kernel, here and in mask: in these functions it would make the kernel spill registers at d = 256.)
template <int key_frags, int row_chunks>
__device__ __forceinline__ void probabilities(
    f32 (&x)[key_frags][row_chunks][4],  // S^T, then P^T: [16 * key_frags, 8 * row_chunks]
    int c, float scale_log2,
    const f32 (&L2)[2]) {  // of this lane's two rows
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[f][c][e] = ex2_approx(fmaf(x[f][c][e], scale_log2, -L2[e % 2]));
  }
}

/// P = 0 where a row of chunk c does not see a key.
template <int key_frags, int row_chunks>
__device__ __forceinline__ void mask(
    f32 (&p)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    int c,
    const int (&visible)[2]) {  // keys from this lane's first on, of its rows
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (16 * f + e / 2 * 8 >= visible[e % 2]) p[f][c][e] = 0.f;
  }
}

/// P = 0 before the first key of a row of chunk c.
template <int key_frags, int row_chunks>
__device__ __forceinline__ void mask_before(
    f32 (&p)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    int c,
    const int (&first)[2]) {  // from this lane's first key on, of its rows
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (16 * f + e / 2 * 8 < first[e % 2]) p[f][c][e] = 0.f;
  }
}

/// The place of element e of x[f][c] below among this lane's.
__device__ __forceinline__ constexpr stage_70::Element element(int i0, int j0, int f, int c, int e) {
  return {i0, j0, 8 * c + e % 2, 16 * f + e / 2 * 8};
}

/// S begins with what the policy adds to it.
template <class Policy, int key_frags, int row_chunks>
__device__ __forceinline__ void begin_with_bias(
    f32 (&x)[key_frags][row_chunks][4],  // S^T: [16 * key_frags, 8 * row_chunks]
    const Policy& policy, const typename Policy::Head& head, int i0,
    int j0) {  // this lane's first row and key
  if (policy.has_number(head, element(i0, j0, key_frags - 1, row_chunks - 1, 3))) {  // all have one
#pragma unroll
    for (int f = 0; f < key_frags; ++f) {
#pragma unroll
      for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[f][c][e] = policy.number(head, element(i0, j0, f, c, e));
      }
    }
  } else {
#pragma unroll
    for (int f = 0; f < key_frags; ++f) {
#pragma unroll
      for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const stage_70::Element at = element(i0, j0, f, c, e);
          x[f][c][e] = policy.has_number(head, at) ? policy.number(head, at) : f32(0.f);
        }
      }
    }
  }
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[f][c][e] = policy.over_scale(x[f][c][e]);
    }
  }
}

/// S becomes what the policy makes of it, and `slope` its derivative.
template <class Policy, int key_frags, int row_chunks>
__device__ __forceinline__ void change_scores(
    f32 (&x)[key_frags][row_chunks][4],      // S^T without the scale: [16 * key_frags, 8 * row_chunks]
    f32 (&slope)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    float scale, const Policy& policy, const typename Policy::Head& head, int i0,
    int j0) {  // this lane's first row and key
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const stage_70::Element at = element(i0, j0, f, c, e);
        x[f][c][e] = policy.score(x[f][c][e] * scale, head, at);
        slope[f][c][e] = policy.slope(x[f][c][e], head, at);
      }
    }
  }
}

/// Gives dS to the policy.
template <class Policy, int key_frags, int row_chunks>
__device__ __forceinline__ void give_gradient(
    const f32 (&x)[key_frags][row_chunks][4],  // dS^T without the scale: [16 * key_frags, 8 * row_chunks]
    const Policy& policy, const typename Policy::Head& head, int i0,
    int j0) {  // this lane's first row and key
  const bool whole = policy.has_number(head, element(i0, j0, key_frags - 1, row_chunks - 1, 3));
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int c = 0; c < row_chunks; ++c) {
      if (whole) {
#pragma unroll
        for (int e = 0; e < 4; ++e) policy.take_gradient(x[f][c][e], head, element(i0, j0, f, c, e));
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const stage_70::Element at = element(i0, j0, f, c, e);
          if (policy.has_number(head, at)) policy.take_gradient(x[f][c][e], head, at);
        }
      }
    }
  }
}

/// Which P^T dropout leaves, a bit for each element of x below.
template <int key_frags, int row_chunks>
struct Stays {
  std::uint32_t bits[(key_frags * row_chunks * 4 + 31) / 32] = {};

  __device__ __forceinline__ void set(int f, int c, int e, bool stays) {
    const int at = (f * row_chunks + c) * 4 + e;
    bits[at / 32] |= static_cast<std::uint32_t>(stays) << at % 32;
  }
  __device__ __forceinline__ bool operator()(int f, int c, int e) const {
    const int at = (f * row_chunks + c) * 4 + e;
    return bits[at / 32] >> at % 32 & 1;
  }
};

/// Asks the policy, for rows from i0 on and keys from j0 on.
template <class Policy, int key_frags, int row_chunks>
__device__ __forceinline__ void ask_which_stay(Stays<key_frags, row_chunks>& stays, const Policy& policy,
                                               const typename Policy::Head& head, int i0, int j0,
                                               int lane) {
  static_assert(row_chunks % 2 == 0);
#pragma unroll
  for (int c = 0; c < row_chunks; c += 2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Words bytes;  // of this row, the one 8 behind it, and 32 keys
#pragma unroll
      for (int f = 0; f < key_frags; ++f) {
        const int i = i0 + 8 * c + 2 * (lane % row_lanes) + r, j = j0 + 16 * f + lane / row_lanes;
        if (f % 2 == 0 || key_frags % 2 == 1) bytes = policy.bytes(head, i, j);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const int behind = part % 2, e = part / 2 * 2 + r;
          stays.set(f, c + behind, e, policy.stays(bytes, i + 8 * behind, j + part / 2 * 8));
        }
      }
    }
  }
}

/// What dropout leaves of P^T; or dP^T - D, of a dP^T with what it leaves.
template <bool of_dS, int key_frags, int row_chunks, int num_buffers, int Br>
__device__ __forceinline__ void drop(
    f32 (&x)[key_frags][row_chunks][4],  // P^T or dP^T: [16 * key_frags, 8 * row_chunks]
    const Stays<key_frags, row_chunks>& stays, float rescale, smem_tile<f32, num_buffers, Br>& D,
    int buffer, int row, int lane) {
#pragma unroll
  for (int c = 0; c < row_chunks; ++c) {
    f32 D_of[2] = {};
    if (of_dS) {
      const int i = row + 8 * c + 2 * (lane % row_lanes);
      D_of[0] = D(buffer, i), D_of[1] = D(buffer, i + 1);
    }
#pragma unroll
    for (int f = 0; f < key_frags; ++f) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool stay = stays(f, c, e);
        if (of_dS)
          x[f][c][e] = fmaf(x[f][c][e], stay ? rescale : 0.f, -D_of[e % 2]);
        else if (!stay)
          x[f][c][e] = 0.f;
      }
    }
  }
}

/// dS = P * (dP - D), element by element.
template <int key_frags, int row_chunks>
__device__ __forceinline__ void multiply(
    f32 (&x)[key_frags][row_chunks][4],          // dP^T - D, then dS^T: [16 * key_frags, 8 * row_chunks]
    const f32 (&p)[key_frags][row_chunks][4]) {  // [16 * key_frags, 8 * row_chunks]
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int c = 0; c < row_chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[f][c][e] *= p[f][c][e];
    }
  }
}

/// P^T goes to the other warp, lane by lane.
template <int Br, int key_frags, int row_chunks, int all>
__device__ __forceinline__ void store_P(
    smem_tile<f32, all, 128>& P,               // of [Bc, Br], 16 x 8 numbers after another as mma has them
    const f32 (&p)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    int k0, int row, int lane) {
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int c = 0; c < row_chunks; ++c)
      store4(P.at((k0 / 16 + f) * (Br / 8) + row / 8 + c, 4 * lane),
             make_float4(p[f][c][0], p[f][c][1], p[f][c][2], p[f][c][3]));
  }
}

/// As multiply, by the P^T that the other warp has stored.
template <int Br, int key_frags, int row_chunks, int all>
__device__ __forceinline__ void multiply_stored(
    f32 (&x)[key_frags][row_chunks][4],  // dP^T - D, then dS^T: [16 * key_frags, 8 * row_chunks]
    smem_tile<f32, all, 128>& P,         // of [Bc, Br], as store_P leaves it
    int k0, int row, int lane) {
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int c = 0; c < row_chunks; ++c) {
      const float4 p = load4(P.at((k0 / 16 + f) * (Br / 8) + row / 8 + c, 4 * lane));
      x[f][c][0] *= p.x, x[f][c][1] *= p.y, x[f][c][2] *= p.z, x[f][c][3] *= p.w;
    }
  }
}

/// P^T or dS^T of chunks c and c + 1 of the rows, rounded: the operand A of the product with dO or Q.
template <class T, int key_frags, int row_chunks>
__device__ __forceinline__ void round_chunks(
    std::uint32_t (&a)[key_frags][4],          // [16 * key_frags, 16]
    const f32 (&x)[key_frags][row_chunks][4],  // [16 * key_frags, 8 * row_chunks]
    int c) {
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      a[f][e] = round_pair<T>(x[f][c + e / 2][e % 2 * 2], x[f][c + e / 2][e % 2 * 2 + 1]);
  }
}

/// dS^T of 16 rows from `row` on goes to shared memory: dQ needs that of all warps.
template <class T, int key_frags, int Bc, int Br>
__device__ __forceinline__ void store_dS(smem_tile<T, Bc, Br>& dS,                // dS^T
                                         const std::uint32_t (&a)[key_frags][4],  // [16 * key_frags, 16]
                                         int k0, int row, int lane) {
  constexpr Swizzle<Br> swizzle;
  const int quad = lane / row_lanes, quad_lane = lane % row_lanes;
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = k0 + 16 * f + quad + e % 2 * 8, r = row + e / 2 * 8;
      store_pair(dS.at(key, swizzle(key, r) + 2 * quad_lane), a[f][e]);
    }
  }
}

/// dS of 16 * row_frags rows from `row` on and 16 keys from k0 on: the operand A of the product with K.
template <class T, int row_frags, int Bc, int Br>
__device__ __forceinline__ void load_dS(std::uint32_t (&a)[row_frags][4],  // [16 * row_frags, 16]
                                        smem_tile<T, Bc, Br>& dS,          // dS^T
                                        int row, int k0, int lane) {
  constexpr Swizzle<Br> swizzle;
#pragma unroll
  for (int f = 0; f < row_frags; ++f) {
    const int key = k0 + lane % 8 + lane / 16 * 8, r = row + 16 * f + lane / 8 % 2 * 8;
    ldmatrix_x4_trans<T>(a[f], dS.at(key, swizzle(key, r)));
  }
}

/// dV, or dK, goes to the place of this warp's keys of V, or K, rounded.
template <class T, class Policy, int key_frags, int chunks, int Bc, int d>
__device__ __forceinline__ void store_sums(smem_tile<T, Bc, d>& dX,                 // V or K
                                           const f32 (&sum)[key_frags][chunks][4],  // [16 * key_frags, d]
                                           bool of_dS, const BackwardSizes& n, const Policy& policy, int k0,
                                           int lane) {
  constexpr Swizzle<d> swizzle;
  const int quad = lane / row_lanes, quad_lane = lane % row_lanes;
#pragma unroll
  for (int f = 0; f < key_frags; ++f) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int key = k0 + 16 * f + quad + a * 8;
#pragma unroll
      for (int x = 0; x < chunks; ++x) {
        f32 low = sum[f][x][2 * a], high = sum[f][x][2 * a + 1];
        if (of_dS) low *= n.scale, high *= n.scale;  // dS had no scale
        if (Policy::drops && !of_dS) low *= policy.rescale(), high *= policy.rescale();
        store_pair(dX.at(key, swizzle(quad, 8 * x) + 2 * quad_lane), round_pair<T>(low, high));
      }
    }
  }
}

/// A few lanes for each row: D = rowsum(dO * O), L2 = L log2(e), and dQ_sum = 0, to which the blocks of all
/// tiles of keys add. The last tile's rows past the end get D = 0 and L2 = infinity: P = 0.
template <class T, class Sequences, int d>
__global__ void __launch_bounds__(helpers)
    prepare(gmem<const T> Og,    // [batch, q_heads, Nq, d]
            gmem<const T> dOg,   // [batch, q_heads, Nq, d]
            gmem<const f32> Lg,  // [batch, q_heads, Nq]
            gmem<f32> Dg,        // [batch, q_heads, padded_Nq]
            gmem<f32> L2g,       // [batch, q_heads, padded_Nq]
            gmem<f32> dQ_sumg,   // [batch, q_heads, padded_Nq, d]
            BackwardSizes n, int padded_Nq, Sequences sequences, int Br) {
  constexpr int lanes = d % 64 == 0 ? 8 : 4;  // of a row
  const int lane = threadIdx.x % lanes, h = blockIdx.y, b = blockIdx.z, all_rows = n.Nq;
  const int first = blockIdx.x * (helpers / lanes), row = first + threadIdx.x / lanes;
  const stage_70::Part part = sequences.of_row(n, b, row, Br);
  const int i = part.first;
  f32 D = 0.f, L2 = INFINITY;
  if (i < n.Nq) {
    const gmem<const T> O = Og + (n.O.at(b, h) + (part.row0 + i) * n.O.row),
                        dO = dOg + (n.dO.at(b, h) + (part.row0 + i) * n.dO.row);
#pragma unroll
    for (int c = 8 * lane; c < d; c += 8 * lanes) {
      if (c >= n.d) break;
      f32 o[8], grad[8];
      load_eight<T>(o, O + c);
      load_eight<T>(grad, dO + c);
#pragma unroll
      for (int e = 0; e < 8; ++e) D += grad[e] * o[e];
    }
  }
  D = lanes_sum<lanes>(D);
  if (lane == 0) {
    if (i < n.Nq)
      L2 = finite(Lg[n.head(b, h) * all_rows + part.row0 + i]) *
           log2_e;  // a row that sees no key is masked in every tile
    Dg[n.head(b, h) * padded_Nq + row] = D;
    L2g[n.head(b, h) * padded_Nq + row] = L2;
  }
  const gmem<f32> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + first) * d;
#pragma unroll
  for (int e = 4 * threadIdx.x; e < helpers / lanes * d; e += 4 * helpers)
    store4(dQ_sum + e, make_float4(0.f, 0.f, 0.f, 0.f));
}

/// Where the tiles begin in dynamic shared memory, in bytes, and how many bytes they take.
template <int d, int Br, int Bc, int num_buffers, int share>
struct Shared {
  static constexpr int K = 0;                               // [Bc, d]
  static constexpr int V = K + 2 * Bc * d;                  // [Bc, d]
  static constexpr int Q = V + 2 * Bc * d;                  // [num_buffers * Br, d]
  static constexpr int dO = Q + 2 * num_buffers * Br * d;   // [num_buffers * Br, d]
  static constexpr int L2 = dO + 2 * num_buffers * Br * d;  // [num_buffers, Br] in fp32
  static constexpr int D = L2 + 4 * num_buffers * Br;       // [num_buffers, Br] in fp32
  static constexpr int dS = D + 4 * num_buffers * Br;       // [Bc, Br], transposed
  static constexpr int P = dS + 2 * Bc * Br;  // [Bc, Br] in fp32, transposed, where two warps share keys
  static constexpr int bytes = P + 4 * (share - 1) * Bc * Br;
};

template <class T, class Policy, int d, int Br, int Bc, int warps, int num_buffers, int share, int step,
          int unroll>
__global__ void __launch_bounds__(32 * warps) fa2_backward(
    gmem<const T> Qg,     // [batch, q_heads, Nq, d]
    gmem<const T> Kg,     // [batch, kv_heads, Nk, d]
    gmem<const T> Vg,     // [batch, kv_heads, Nk, d]
    gmem<const T> dOg,    // [batch, q_heads, Nq, d]
    gmem<const f32> Dg,   // [batch, q_heads, padded_Nq]
    gmem<const f32> L2g,  // [batch, q_heads, padded_Nq]
    gmem<f32> dQ_sumg,    // [batch, q_heads, padded_Nq, d], 16 x 8 numbers after another as mma has them
    gmem<T> dKg,          // [batch, kv_heads, Nk, d]
    gmem<T> dVg,          // [batch, kv_heads, Nk, d]
    BackwardSizes n, int padded_Nq,
    Policy policy) {  // what is not plain attention: which keys a row sees, what a score becomes
  constexpr int threads = 32 * warps, turns = 2 / share;
  constexpr int key_frags = Bc * share / (16 * warps);  // fragments of 16 keys of a warp
  constexpr int blocks = column_blocks(Br, d, warps), row_frags = Br * blocks / (16 * warps),
                column_chunks = d / 8 / blocks;
  static_assert(key_frags > 0 && row_frags > 0 && Br % step == 0);
  using At = Shared<d, Br, Bc, num_buffers, share>;
  auto&& K = dynamic_tile<T, Bc, d, "K">(At::K);
  auto&& V = dynamic_tile<T, Bc, d, "V">(At::V);
  auto&& Q = dynamic_tile<T, num_buffers * Br, d, "Q">(At::Q);
  auto&& dO = dynamic_tile<T, num_buffers * Br, d, "dO">(At::dO);
  auto&& L2 = dynamic_tile<f32, num_buffers, Br, "L2">(At::L2);
  auto&& D = dynamic_tile<f32, num_buffers, Br, "D">(At::D);
  auto&& dS = dynamic_tile<T, Bc, Br, "dS">(At::dS);
  n.causal = Policy::causal;  // known when this is compiled

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / row_lanes,
            quad_lane = lane % row_lanes;
  // Its keys of a tile. Where two warps share them, the second half of the warps has dP, dS and dK: each of
  // the four schedulers of a multiprocessor then has warps of both kinds.
  const int k0 = warp % (warps / share) * (16 * key_frags);
  const bool second = warp >= warps / 2;
  const int r0 = warp / blocks * (16 * row_frags),
            column0 = warp % blocks * (8 * column_chunks);  // its rows and columns of dQ
  constexpr Swizzle<d> swizzle;
  // The first keys come first, of all heads, where the most rows see them: no block has much left to do
  // when the others end. But batch entry after batch entry: the L2 cache holds Q, dO and dQ of its heads.
  constexpr bool by_keys = Policy::causal;
  const int kv_head = by_keys ? blockIdx.x : blockIdx.y, b = blockIdx.z;
  const stage_70::Part part = policy.sequences().of_key(n, b, (by_keys ? blockIdx.y : blockIdx.x) * Bc, Bc);
  const int j0 = part.first;
  if (Policy::Sequences::packed && j0 >= n.Nk) return;  // more blocks are launched than there are tiles
  const int padded_row0 = policy.sequences().padded_row0(part, Br);  // in arrays of padded_Nq rows
  const float scale_log2 = Policy::changes_scores ? log2_e : n.scale * log2_e;

  // The tiles of rows that see some of the keys, of all query heads of the group one after the other: they
  // add to the same dK and dV. Key j0 is seen first, and the last one last.
  const int first = policy.rows_first(n, j0) / Br * Br, end = policy.rows_end(n, j0 + Bc - 1);
  struct RowTile {
    int h, i0;  // of head h the rows from i0 on
  };
  int live_of = -1;
  [[maybe_unused]] typename Policy::LiveTiles live;  // of head live_of
  // From this tile on, or where it is behind the last of its head, the next one that is live.
  const auto live_from = [&](RowTile at) {
    if constexpr (Policy::skips_tiles) {
      for (; at.h < (kv_head + 1) * n.group; ++at.h, at.i0 = first) {
        if (at.h != live_of) live = policy.live_rows(policy.head(n, part.entry, at.h), j0), live_of = at.h;
        at.i0 = live.next(at.i0, end);
        if (at.i0 < end) break;
      }
    }
    return at;
  };
  // (Kept apart, plain attention has its instructions in the order of stage 38.)
  [[maybe_unused]] const RowTile begin = live_from({kv_head * n.group, first});
  const auto begin_h = [&] { return Policy::skips_tiles ? begin.h : kv_head * n.group; };
  const auto begin_i0 = [&] { return Policy::skips_tiles ? begin.i0 : first; };
  const bool seen =
      Policy::each_key_is_seen || (Policy::skips_tiles ? begin_h() < (kv_head + 1) * n.group : first < end);
  const auto copy = [&](int h, int i0, int to) {
    load_tile_async<Br, d, threads>(Q, to * Br, Qg + (n.Q.at(b, h) + part.row0 * n.Q.row), n.Q.row, i0,
                                    n.Nq, swizzle, n.d);
    load_tile_async<Br, d, threads>(dO, to * Br, dOg + (n.dO.at(b, h) + part.row0 * n.dO.row), n.dO.row, i0,
                                    n.Nq, swizzle, n.d);
    if (const int r = 4 * threadIdx.x; r < Br) {
      cp_async_16B<f32>(L2.at(to, r), L2g + (n.head(b, h) * padded_Nq + padded_row0 + i0 + r));
      cp_async_16B<f32>(D.at(to, r), Dg + (n.head(b, h) * padded_Nq + padded_row0 + i0 + r));
    }
    cp_async_commit();
  };
  if (seen) {
    load_tile_async<Bc, d, threads>(K, 0, Kg + (n.K.at(b, kv_head) + part.key0 * n.K.row), n.K.row, j0,
                                    n.Nk, swizzle, n.d);
    load_tile_async<Bc, d, threads>(V, 0, Vg + (n.V.at(b, kv_head) + part.key0 * n.V.row), n.V.row, j0,
                                    n.Nk, swizzle, n.d);
    copy(begin_h(), begin_i0(), 0);
  }

  // dV and dK as mma has them; where two warps share the keys, one of them.
  f32 sum[turns][key_frags][d / 8][4] = {};
  int buffer = 0;
  for (int h = begin_h(), i0 = begin_i0(); seen && h < (kv_head + 1) * n.group;) {
    const bool last = i0 + Br >= end;  // of this head
    const RowTile next = live_from({last ? h + 1 : h, last ? first : i0 + Br});
    const int next_h = next.h, next_i0 = next.i0, next_buffer = num_buffers - 1 - buffer;
    const bool more = next_h < (kv_head + 1) * n.group;
    cp_async_wait<0>();
    // K, V, Q, dO, L2 and D are read, dS and the other buffers change: the copies of all threads must have
    // arrived, all warps have read the last dS and what was in those buffers.
    __syncthreads();
    if (num_buffers == 2 && more) copy(next_h, next_i0, next_buffer);
    // What the first row sees ends first, and what the last one sees begins last.
    const int last_row = i0 + Br < n.Nq ? i0 + Br - 1 : n.Nq - 1;
    const bool ends = j0 + Bc > policy.keys_end(n, i0),
               begins = Policy::begins_later && j0 < policy.keys_first(n, last_row);
    count_tile(ends || begins);
    const typename Policy::Head head = policy.head(n, part.entry, h);

#pragma unroll
    for (int r = 0; r < Br; r += step) {
      // First S^T = K Q^T, P = exp(S - L) and dV += P^T dO, then dP^T = V dO^T, dS = P * (dP - D) and
      // dK += dS^T Q: the same products with other operands. Where two warps share the keys, each has one
      // turn.
      f32 p[key_frags][step / 8][4] = {};
      Stays<key_frags, step / 8> stays;
      if (Policy::drops) ask_which_stay(stays, policy, head, i0 + r, j0 + k0, lane);
#pragma unroll
      for (int turn = 0; turn < turns; ++turn) {
        const bool of_dS = turns == 2 ? turn == 1 : second;
        f32 x[key_frags][step / 8][4];  // S^T, then P^T; or dP^T - D, then dS^T
        begin_sums(x, D, of_dS && !Policy::drops, buffer, r, lane);
        if (Policy::has_bias && !of_dS && policy.has_numbers())
          stage_71::begin_with_bias(x, policy, head, i0 + r + 2 * quad_lane, j0 + k0 + quad);
        // S^T = K Q^T, or dP^T - D = V dO^T - D
        product<unroll>(x, of_dS ? V : K, of_dS ? dO : Q, k0, buffer * Br + r, lane);
        if (!of_dS) {
          if (Policy::changes_scores)
            change_scores(x, p, n.scale, policy, head, i0 + r + 2 * quad_lane, j0 + k0 + quad);
#pragma unroll
          for (int c = 0; c < step / 8; ++c) {
            const int i = r + 8 * c + 2 * quad_lane;  // this lane has rows i and i + 1
            probabilities(x, c, scale_log2, {L2(buffer, i), L2(buffer, i + 1)});
          }
          if (ends) {
#pragma unroll
            for (int c = 0; c < step / 8; ++c) {
              const int i = i0 + r + 8 * c + 2 * quad_lane, j = j0 + k0 + quad;
              mask(x, c, {policy.keys_end(n, i) - j, policy.keys_end(n, i + 1) - j});
            }
          }
          if (begins) {
#pragma unroll
            for (int c = 0; c < step / 8; ++c) {
              const int i = i0 + r + 8 * c + 2 * quad_lane, j = j0 + k0 + quad;
              mask_before(x, c, {policy.keys_first(n, i) - j, policy.keys_first(n, i + 1) - j});
            }
          }
          for (int f = 0; f < key_frags; ++f)
            probe_transposed("P", n.head(b, h), part.row0 + i0 + r, part.key0 + j0 + k0 + 16 * f, x[f],
                             lane);
        }
        if (Policy::drops && of_dS) drop<true>(x, stays, policy.rescale(), D, buffer, r, lane);
        // dS = P * (dP - D), with the P of the turn before, or of the other warp; times the slope of the
        // scores, where the policy changes them
        if (Policy::changes_scores && !of_dS) multiply(p, x);
        if constexpr (share == 1) {
          if (of_dS)
            multiply(x, p);
          else if (!Policy::changes_scores)
            memcpy(p, x, sizeof p);
        } else {  // P goes to the other warp, lane by lane
          auto&& P = dynamic_tile<f32, Bc / 16 * (Br / 8), 128, "P">(At::P);
          if (!of_dS) store_P<Br>(P, Policy::changes_scores ? p : x, k0, r, lane);
          named_barrier_sync(1 + warp % (warps / 2), 64);  // P is read: it must have been written
          if (of_dS) multiply_stored<Br>(x, P, k0, r, lane);
        }
        if (Policy::has_bias && of_dS)
          give_gradient(x, policy, head, i0 + r + 2 * quad_lane, j0 + k0 + quad);
        if (Policy::drops && !of_dS) drop<false>(x, stays, policy.rescale(), D, buffer, r, lane);
#pragma unroll
        for (int c = 0; c < step / 8; c += 2) {
          std::uint32_t a[key_frags][4];
          round_chunks<T>(a, x, c);
          // dV += P^T dO, or dK += dS^T Q
          add_product(sum[turn], a, of_dS ? Q : dO, buffer * Br + r + 8 * c, 0, lane);
          if (of_dS) store_dS(dS, a, k0, r + 8 * c, lane);
        }
      }
    }
    // dS is read, and with one buffer Q, dO, L2 and D change: dS must be complete, the others have been
    // read.
    __syncthreads();
    if (num_buffers == 1 && more) copy(next_h, next_i0, next_buffer);

    // dQ += dS K: this warp's rows and columns, all keys
    f32 dq[row_frags][column_chunks][4] = {};
#pragma unroll unroll
    for (int k = 0; k < Bc; k += 16) {
      std::uint32_t ds[row_frags][4];
      load_dS(ds, dS, r0, k, lane);
      add_product(dq, ds, K, k, column0, lane);
    }
    const gmem<f32> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + padded_row0 + i0 + r0) * d;
#pragma unroll
    for (int f = 0; f < row_frags; ++f) {
#pragma unroll
      for (int x = 0; x < column_chunks; ++x)
        atomic_add4(dQ_sum + (16 * f * d + (column0 / 8 + x) * 128 + 4 * lane),
                    make_float4(dq[f][x][0], dq[f][x][1], dq[f][x][2], dq[f][x][3]));
    }
    h = next_h, i0 = next_i0, buffer = next_buffer;
  }
  // dK goes to the place of this warp's keys of K, dV to that of V, and from there to memory 16 bytes a
  // lane, whole rows at a time.
  __syncthreads();  // K and V change: all warps must have read them
#pragma unroll
  for (int turn = 0; turn < turns; ++turn) {
    const bool of_dS = turns == 2 ? turn == 1 : second;
    smem_tile<T, Bc, d>& dX = of_dS ? K : V;
    store_sums<T>(dX, sum[turn], of_dS, n, policy, k0, lane);
    __syncwarp();  // each row is read by lanes that have not written it: all must have
    const gmem<T> out = of_dS ? dKg + (n.dK.at(b, kv_head) + part.key0 * n.dK.row)
                              : dVg + (n.dV.at(b, kv_head) + part.key0 * n.dV.row);
    const std::int64_t stride = of_dS ? n.dK.row : n.dV.row;
#pragma unroll(2 * unroll)
    for (int e = lane; e < 16 * key_frags * (d / 8); e += 32) {
      const int key = k0 + e / (d / 8), c = e % (d / 8) * 8, j = j0 + key;
      store_16B<T>(out + (j * stride + c), dX.at(key, swizzle(key, c)), j < n.Nk && c < n.d);
    }
  }
}

/// dQ = scale * dQ_sum, in 16 bits and in rows again: a thread for 8 columns of rows quad and quad + 8
/// of 16.
template <class T, class Sequences, int d>
__global__ void __launch_bounds__(helpers)
    convert(gmem<const f32> dQ_sumg,  // [batch, q_heads, padded_Nq, d]
            gmem<T> dQg,              // [batch, q_heads, Nq, d]
            BackwardSizes n, int padded_Nq, Sequences sequences, int Br) {
  const int e = blockIdx.x * helpers + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
  const int row = e / d * 16, x = e % d / 8, quad = e % 8;
  if (Sequences::packed && row >= padded_Nq) return;
  const stage_70::Part part = sequences.of_row(n, b, row, Br);
  const int i0 = part.first;
  if (i0 >= n.Nq) return;
  const gmem<const f32> dQ_sum = dQ_sumg + ((n.head(b, h) * padded_Nq + row) * d + x * 128 + 16 * quad);
  f32 dq[2][8];
#pragma unroll
  for (int quad_lane = 0; quad_lane < row_lanes; ++quad_lane) {
    const float4 of_lane = load4(dQ_sum + 4 * quad_lane);
    dq[0][2 * quad_lane] = n.scale * of_lane.x, dq[0][2 * quad_lane + 1] = n.scale * of_lane.y;
    dq[1][2 * quad_lane] = n.scale * of_lane.z, dq[1][2 * quad_lane + 1] = n.scale * of_lane.w;
  }
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    const int i = i0 + quad + 8 * a;
    if (i < n.Nq && 8 * x < n.d)
      store_eight<T>(dQg + (n.dQ.at(b, h) + (part.row0 + i) * n.dQ.row + 8 * x), dq[a]);
  }
}

}  // namespace
}  // namespace flashladder::stage_71
