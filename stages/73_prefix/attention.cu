// Prefix: all rows see the first keys, what a model is asked, also those rows that stand before them; what
// it answers stays causal. Every row tile has live tiles as far as the prefix, at least.
#include "common/kernel/host.hpp"
#include "stages/73_prefix/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/73_prefix/launch.hpp"

namespace flashladder::stage_73 {
namespace {

using stage_70::Plain;

/// The policy of a problem. Without a mask the prefix is all keys.
Prefix<Plain<true>> policy_of(const Problem& p) {
  Prefix<Plain<true>> policy = prefix_of(p, Plain<true>());
  if (!p.causal) policy.prefix = static_cast<int>(p.Nk);
  return policy;
}

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128>(
      f.problem, [&](auto chosen) { stage_70::forward_with(f, chosen, policy_of(f.problem)); });
}

void backward(const Backward& f) {
  for_masked_row_of<stage_71::table, 64, 128>(
      f.problem, [&](auto chosen) { stage_71::backward_with(f, chosen, policy_of(f.problem)); });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 73,
    .name = "prefix",
    .title = "prefix",
    .idea = "all rows see the first keys, and the causal mask holds for the others",
    .claim = "tiles BH sum(live_i): of each row tile those of the prefix, and behind it those of the mask",
    .before = 70,
    .before_backward = 71,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.prefix = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_73
