// A bias on the scores, which tells of positions. ALiBi computes it: a score falls with the distance of its
// key, by a slope that each head has for itself. Any other bias is read from memory, and has a gradient.
// The policies stand on that of a window: one kernel has both.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/76_bias/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/76_bias/launch.hpp"

namespace flashladder::stage_76 {
namespace {

/// Calls `body` with the policy of a call. A kernel without a bias does not ask for one.
template <class Call, class Body>
void with_policy(const Call& f, Body body) {
  const stage_72::SlidingWindow window = stage_72::window_of(f.problem);
  if (!f.problem.has_bias()) return with_alibi(f, window, body);
  with_bias(f, window, [&](const auto& bias) { with_alibi(f, bias, body); });
}

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128>(f.problem, [&](auto chosen) {
    with_policy(f, [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
  });
}

void backward(const Backward& f) {
  clear_gradient(f);
  for_masked_row_of<stage_71::table, 64, 128>(f.problem, [&](auto chosen) {
    with_policy(f, [&](const auto& policy) { stage_71::backward_with(f, chosen, policy); });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 76,
    .name = "bias",
    .title = "a bias, and ALiBi",
    .idea =
        "a number is added to each score: one in memory, or, ALiBi, one that is computed, a slope of the "
        "head "
        "times the distance",
    .claim =
        "in memory: 4 bytes of each score that is computed are read. ALiBi: one number of each head, and "
        "of "
        "each score two mul more, one of them fused",
    .before = 72,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true, .alibi = true, .bias = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_76
