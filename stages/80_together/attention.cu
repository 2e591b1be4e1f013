// Together: a policy stands on top of another, so that one kernel has them all. A call may ask for a
// window or a prefix, a bias, a softcap, ALiBi, sinks, dropout, a block map or packed sequences at once;
// what it does not ask for stays neutral.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/73_prefix/policy.hpp"
#include "stages/74_documents/policy.hpp"
#include "stages/75_softcap/policy.hpp"
#include "stages/76_bias/policy.hpp"
#include "stages/77_sinks/policy.hpp"
#include "stages/78_dropout/policy.hpp"
#include "stages/79_block_map/policy.hpp"
#include "stages/80_together/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/73_prefix/launch.hpp"
#include "stages/74_documents/launch.hpp"
#include "stages/75_softcap/launch.hpp"
#include "stages/76_bias/launch.hpp"
#include "stages/77_sinks/launch.hpp"
#include "stages/78_dropout/launch.hpp"
#include "stages/79_block_map/launch.hpp"

namespace flashladder::stage_80 {
namespace {

using Masked = stage_73::Prefix<stage_72::SlidingWindow>;

/// Calls `body` with the policy of a call: a window, and on top of it a prefix and all but the sinks, for
/// which only the forward pass asks. The softcap comes before ALiBi, as in flash-attention.
template <class Call, class Body>
void with_others(const Call& f, Body body) {
  const Masked masked = stage_73::prefix_of(f.problem, stage_72::window_of(f.problem));
  stage_76::with_bias(f, masked, [&](const stage_76::Bias<Masked>& bias) {
    const SoftcapIfAny<stage_76::Bias<Masked>> softcap{
        bias, stage_75::softcap_of(f.problem, stage_70::Plain<true>())};
    stage_76::with_alibi(f, softcap, [&](const auto& alibi) {
      stage_78::with_any_dropout(f, alibi, [&](const auto& dropout) {
        stage_79::with_block_map(
            f, dropout, [&](const auto& live_blocks) { stage_74::with_documents(f, live_blocks, body); });
      });
    });
  });
}

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128, 256>(f.problem, [&](auto chosen) {
    with_others(f, [&](const auto& others) {
      stage_77::with_sinks(f, others,
                           [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
    });
  });
}

void backward(const Backward& f) {
  stage_74::require_all_used(f.problem);
  stage_76::clear_gradient(f);
  for_masked_row_of<stage_71::table, 64, 128, 256>(f.problem, [&](auto chosen) {
    with_others(f, [&](const auto& policy) {
      stage_71::backward_with(f, chosen, policy, stage_77::SinkGradient{f});
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 80,
    .name = "together",
    .title = "all together",
    .idea =
        "policies stand on top of each other: a window or a prefix, a bias, a softcap, ALiBi, sinks, "
        "dropout, and a block map or packed sequences in one call",
    .claim =
        "tiles, bytes and FLOPs are those of packed sequences, or of the block map, alone, and of each "
        "variant its own numbers",
    .before = 74,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8,
                 .features = {.window = true,
                              .softcap = true,
                              .prefix = true,
                              .alibi = true,
                              .bias = true,
                              .sinks = true,
                              .dropout = true,
                              .packing = true,
                              .block_map = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_80
