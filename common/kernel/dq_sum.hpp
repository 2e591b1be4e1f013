#pragma once
// The kernels before and after a backward pass in which the blocks of all tiles of keys add to dQ_sum, as
// in stage 38, which explains them. Their namespace has no name: one program may hold them several times.
#include "common/kernel/device.hpp"
#include "common/ptx/dependent_launch.hpp"

namespace flashladder {
namespace {

constexpr int helpers = 128;     // threads of a block of these kernels
constexpr int helper_lanes = 8;  // of a row, before
constexpr float log2_e = 1.4426950408889634f;

/// Takes a number, and does nothing.
struct Nothing {
  __device__ __forceinline__ void operator()(f32) const {}
};

/// The numbers of row i that a pass needs, by eight lanes: D = rowsum(dO * O), which all of them return,
/// and L2 = L log2(e). The last tile's rows past the end get D = 0 and L2 = infinity: P = 0. `take` is
/// given each number of dO.
template <class T, int d, class Take = Nothing>
__device__ __forceinline__ f32 prepare_row(gmem<const T> Og,    // [batch, q_heads, Nq, d]
                                           gmem<const T> dOg,   // [batch, q_heads, Nq, d]
                                           gmem<const f32> Lg,  // [batch, q_heads, Nq]
                                           gmem<f32> Dg,        // [batch, q_heads, padded_Nq]
                                           gmem<f32> L2g,       // [batch, q_heads, padded_Nq]
                                           const BackwardSizes& n, int padded_Nq, int b, int h, int i,
                                           Take take = {}) {
  const int lane = threadIdx.x % helper_lanes;
  f32 D = 0.f, L2 = INFINITY;
  if (i < n.Nq) {
    const gmem<const T> O = Og + (n.O.at(b, h) + i * n.O.row), dO = dOg + (n.dO.at(b, h) + i * n.dO.row);
#pragma unroll
    for (int c = 8 * lane; c < d; c += 8 * helper_lanes) {
      if (c >= n.d) break;
      f32 o[8], grad[8];
      load_eight<T>(o, O + c);
      load_eight<T>(grad, dO + c);
#pragma unroll
      for (int e = 0; e < 8; ++e) D += grad[e] * o[e], take(grad[e]);
    }
  }
  D = lanes_sum<helper_lanes>(D);
  if (lane == 0) {
    if (i < n.Nq)
      L2 = finite(Lg[n.row0(b, h) + i]) * log2_e;  // a row that sees no key is masked in every tile
    Dg[n.head(b, h) * padded_Nq + i] = D;
    L2g[n.head(b, h) * padded_Nq + i] = L2;
  }
  return D;
}

/// Which head, or batch entry, of `all` a block takes. Where these kernels are `chained`, as in stage 63,
/// they go from the last one to the first one, since the kernel between them goes the other way.
template <bool chained>
__device__ __forceinline__ int in_turn(unsigned index, unsigned all) {
  return static_cast<int>(chained ? all - 1 - index : index);
}

/// prepare_row for each row, and dQ_sum = 0, to which the blocks of all tiles of keys add.
template <class T, int d, bool chained>
__global__ void __launch_bounds__(helpers)
    prepare_in_turn(gmem<const T> Og,    // [batch, q_heads, Nq, d]
                    gmem<const T> dOg,   // [batch, q_heads, Nq, d]
                    gmem<const f32> Lg,  // [batch, q_heads, Nq]
                    gmem<f32> Dg,        // [batch, q_heads, padded_Nq]
                    gmem<f32> L2g,       // [batch, q_heads, padded_Nq]
                    gmem<f32> dQ_sumg,   // [batch, q_heads, padded_Nq, d]
                    BackwardSizes n, int padded_Nq) {
  if constexpr (chained) launch_dependents();  // what they wait for is this kernel's end
  const int h = in_turn<chained>(blockIdx.y, gridDim.y), b = in_turn<chained>(blockIdx.z, gridDim.z);
  const int first = blockIdx.x * (helpers / helper_lanes);
  prepare_row<T, d>(Og, dOg, Lg, Dg, L2g, n, padded_Nq, b, h, first + threadIdx.x / helper_lanes);
  const gmem<f32> dQ_sum = dQ_sumg + (n.head(b, h) * padded_Nq + first) * d;
#pragma unroll
  for (int e = 4 * threadIdx.x; e < helpers / helper_lanes * d; e += 4 * helpers)
    store4(dQ_sum + e, make_float4(0.f, 0.f, 0.f, 0.f));
}

/// That of passes that begin with the first head.
template <class T, int d>
constexpr auto* prepare = prepare_in_turn<T, d, false>;

/// The same without dQ_sum: where no block adds to another one's dQ.
template <class T, int d>
__global__ void __launch_bounds__(helpers) prepare_rows(gmem<const T> Og,    // [batch, q_heads, Nq, d]
                                                        gmem<const T> dOg,   // [batch, q_heads, Nq, d]
                                                        gmem<const f32> Lg,  // [batch, q_heads, Nq]
                                                        gmem<f32> Dg,        // [batch, q_heads, padded_Nq]
                                                        gmem<f32> L2g,       // [batch, q_heads, padded_Nq]
                                                        BackwardSizes n, int padded_Nq) {
  prepare_row<T, d>(Og, dOg, Lg, Dg, L2g, n, padded_Nq, blockIdx.z, blockIdx.y,
                    blockIdx.x * (helpers / helper_lanes) + threadIdx.x / helper_lanes);
}

/// dQ = scale * dQ_sum, in 16 bits and in rows again: a thread for 8 columns of rows quad and quad + 8
/// of 16.
template <class T, int d, bool chained>
__global__ void __launch_bounds__(helpers)
    convert_in_turn(gmem<const f32> dQ_sumg,  // [batch, q_heads, padded_Nq, d]
                    gmem<T> dQg,              // [batch, q_heads, Nq, d]
                    BackwardSizes n, int padded_Nq) {
  const int h = in_turn<chained>(blockIdx.y, gridDim.y), b = in_turn<chained>(blockIdx.z, gridDim.z);
  const int e = blockIdx.x * helpers + threadIdx.x;
  const int i0 = e / d * 16, x = e % d / 8, quad = e % 8;
  if (i0 >= n.Nq) return;
  if constexpr (chained) grid_dependency_wait();  // dQ_sum is complete when the kernel before has ended
  const gmem<const f32> dQ_sum =
      behind_wait(dQ_sumg + ((n.head(b, h) * padded_Nq + i0) * d + x * 128 + 16 * quad));
  f32 dq[2][8];
#pragma unroll
  for (int quad_lane = 0; quad_lane < 4; ++quad_lane) {
    const float4 of_lane = load4(dQ_sum + 4 * quad_lane);
    dq[0][2 * quad_lane] = n.scale * of_lane.x, dq[0][2 * quad_lane + 1] = n.scale * of_lane.y;
    dq[1][2 * quad_lane] = n.scale * of_lane.z, dq[1][2 * quad_lane + 1] = n.scale * of_lane.w;
  }
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    const int i = i0 + quad + 8 * a;
    if (i < n.Nq && 8 * x < n.d) store_eight<T>(dQg + (n.dQ.at(b, h) + i * n.dQ.row + 8 * x), dq[a]);
  }
}

/// Likewise.
template <class T, int d>
constexpr auto* convert = convert_in_turn<T, d, false>;

}  // namespace
}  // namespace flashladder
