// Softcap: no score is above a limit, and none below minus the limit: cap * tanh(s / cap) takes its place.
// It is between -cap and cap, and near s where s is small. Backward, the slope of tanh is a factor of dS.
#include "common/kernel/host.hpp"
#include "stages/75_softcap/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/75_softcap/launch.hpp"

namespace flashladder::stage_75 {
namespace {

void forward(const Forward& f) {
  for_row<stage_70::table>(f.problem, [&](auto chosen) {
    constexpr stage_70::Row row = chosen;
    with_softcap(f.problem, stage_70::Plain<row.causal>(),
                 [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
  });
}

void backward(const Backward& f) {
  for_row<stage_71::table>(f.problem, [&](auto chosen) {
    constexpr stage_71::Row row = chosen;
    with_softcap(f.problem, stage_70::Plain<row.causal>(),
                 [&](const auto& policy) { stage_71::backward_with(f, chosen, policy); });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 75,
    .name = "softcap",
    .title = "softcap",
    .idea = "cap * tanh(s / cap) takes the place of a score s, so that none is above the cap",
    .claim = "forward, of each score: one exponential, one division, 3 mul and 2 add more",
    .before = 70,
    .before_backward = 71,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8, .features = {.softcap = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_75
