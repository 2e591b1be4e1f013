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
#include "stages/77_sinks/launch.hpp"

namespace flashladder::stage_77 {
namespace {

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128>(f.problem, [&](auto chosen) {
    with_sinks(f, stage_72::window_of(f.problem),
               [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
  });
}

void backward(const Backward& f) {
  for_masked_row_of<stage_71::table, 64, 128>(f.problem, [&](auto chosen) {
    stage_71::backward_with(f, chosen, stage_72::window_of(f.problem), SinkGradient{f});
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
