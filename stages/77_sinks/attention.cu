// Sinks: each head has a learnt score of its own beside those of its keys, as if there were one more key
// with V = 0. A row that finds nothing gives its probability to the sink, and its O is near 0. The kernel
// starts with m and l of the sink; L then has it, so that the backward pass is that of the window. It adds
// the gradient of the sinks.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/77_sinks/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"

namespace flashladder::stage_77 {
namespace {

constexpr int threads = 256;

/// dsink = -sum(exp(sink - L) D), over all rows of a head: a block for each.
__global__ void __launch_bounds__(threads) sink_gradient(gmem<const f32> sinks,  // [q_heads]
                                                         gmem<const f32> Lg,     // [batch, q_heads, Nq]
                                                         gmem<const f32> Dg,  // [batch, q_heads, padded_Nq]
                                                         gmem<f32> dsinks,    // [q_heads]
                                                         BackwardSizes n, int batch, int padded_Nq) {
  __shared__ smem_array<f32, threads / 32, 1, "sums"> sums;
  const int h = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const f32 sink = sinks[h];
  f32 sum = 0.f;
  for (int b = 0; b < batch; ++b) {
    for (int i = threadIdx.x; i < n.Nq; i += threads) {
      const f32 L = Lg[n.row0(b, h) + i], D = Dg[n.head(b, h) * padded_Nq + i];
      sum -= expf(sink - finite(L)) * D;  // a row that sees neither key nor sink has D = 0
    }
  }
  sum = lanes_sum<32>(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();  // the sums of all warps are read: they must have been written
  if (threadIdx.x > 0) return;
  f32 all = 0.f;
  for (int w = 0; w < threads / 32; ++w) all += sums[w];
  dsinks[h] = all;
}

void forward(const Forward& f) {
  const DeviceBuffer<f32> sinks = view_if_given<f32>(f, "sinks");
  for_masked_row_of_64_or_128<stage_70::table>(f.problem, [&](auto chosen) {
    const Sinks<stage_72::SlidingWindow> policy{stage_72::window_of(f.problem), sinks, f.problem.sinks};
    stage_70::forward_with(f, chosen, policy);
  });
}

void backward(const Backward& f) {
  const auto gradient = [&](const auto& x, const ExtraBuffer<f32>& D, int padded_Nq) {
    if (!f.problem.sinks) return;
    const DeviceBuffer<f32> sinks = view_of<f32>(f, "sinks"), dsinks = view_of<f32>(f, "dsinks");
    launch("sink_gradient", sink_gradient, dim3(x.heads), threads, 0, sinks, x.L, D, dsinks, x.sizes,
           x.batch, padded_Nq);
  };
  for_masked_row_of_64_or_128<stage_71::table>(f.problem, [&](auto chosen) {
    stage_71::backward_with(f, chosen, stage_72::window_of(f.problem), gradient);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 77,
    .name = "sinks",
    .title = "attention sinks",
    .idea =
        "each head has a learnt score beside those of its keys, so that a row may attend to nothing; the "
        "kernel starts with its m and l",
    .claim = "forward, of each head one number is read; backward, for dsinks, 8 bytes of each row",
    .before = 72,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true, .sinks = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_77
