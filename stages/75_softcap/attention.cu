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

/// Without a softcap it is plain attention, whose kernels are compiled already.
const Stage& plain_attention(int number) {
  return on_backend(find_stage(number), kernel_backend);
}

void forward(const Forward& f) {
  if (f.problem.softcap == 0) return plain_attention(70).forward(f);
  for_row<stage_70::table>(f.problem, [&](auto chosen) {
    constexpr stage_70::Row row = chosen;
    stage_70::forward_with(f, chosen, softcap_of(f.problem, stage_70::Plain<row.causal>()));
  });
}

void backward(const Backward& f) {
  if (f.problem.softcap == 0) return plain_attention(71).backward(f);
  for_row<stage_71::table>(f.problem, [&](auto chosen) {
    constexpr stage_71::Row row = chosen;
    stage_71::backward_with(f, chosen, softcap_of(f.problem, stage_70::Plain<row.causal>()));
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
