#pragma once
// The policy of stage 77, and the kernel that it adds to the backward pass; attention.cu beside it explains
// its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_77 {
namespace {

/// Each head has a score of its own beside those of its keys, on top of the policy Base.
template <class Base>
struct Sinks : Base {
  gmem<const f32> sinks;  // [q_heads]
  bool given;             // whether there are any

  struct Head : Base::Head {
    f32 its_sink;
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), given ? static_cast<f32>(sinks[h]) : f32(-INFINITY)};
  }

  static constexpr bool has_sink = true;
  __device__ __forceinline__ f32 sink(const Head& head) const { return head.its_sink; }
};

constexpr int sink_threads = 256;

/// dsink = -sum(exp(sink - L) D), over all rows of a head: a block for each.
template <class Sequences>
__global__ void __launch_bounds__(sink_threads)
    sink_gradient(gmem<const f32> sinks,  // [q_heads]
                  gmem<const f32> Lg,     // [batch, q_heads, Nq]
                  gmem<const f32> Dg,     // [batch, q_heads, padded_Nq], in tiles of Br rows
                  gmem<f32> dsinks,       // [q_heads]
                  BackwardSizes n, int batch, int padded_Nq, Sequences sequences, int Br) {
  __shared__ smem_array<f32, sink_threads / 32, 1, "sums"> sums;
  const int h = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const f32 sink = sinks[h];
  f32 sum = 0.f;
  for (int b = 0; b < batch; ++b) {
    for (int row = threadIdx.x; row < padded_Nq; row += sink_threads) {
      Sizes own = n;  // those of the row's sequence
      const auto part = sequences.of_row(own, b, row, Br);
      if (part.first >= own.Nq) continue;
      const f32 L = Lg[n.row0(b, h) + part.row0 + part.first], D = Dg[n.head(b, h) * padded_Nq + row];
      sum -= expf(sink - finite(L)) * D;  // a row that sees neither key nor sink has D = 0
    }
  }
  sum = lanes_sum<32>(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();  // the sums of all warps are read: they must have been written
  if (threadIdx.x > 0) return;
  f32 all = 0.f;
  for (int w = 0; w < sink_threads / 32; ++w) all += sums[w];
  dsinks[h] = all;
}

}  // namespace
}  // namespace flashladder::stage_77
