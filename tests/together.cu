// All policies that go together on top of each other, in one kernel of each pass: what a call with several
// variants needs, and nothing more than their names.
#include "together.hpp"

#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/74_documents/policy.hpp"
#include "stages/75_softcap/policy.hpp"
#include "stages/76_alibi/policy.hpp"
#include "stages/77_sinks/policy.hpp"
#include "stages/78_dropout/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/74_documents/launch.hpp"
#include "stages/75_softcap/launch.hpp"
#include "stages/76_alibi/launch.hpp"
#include "stages/77_sinks/launch.hpp"
#include "stages/78_dropout/launch.hpp"

namespace flashladder {
namespace {

/// Compiled for these alone.
constexpr Dtype tested_dtypes[] = {Dtype::fp16};
struct ForTest {
  constexpr bool operator()(const auto& row) const {
    return (row.d == 64 || row.d == 128) && row.dtype == tested_dtypes[0];
  }
};

/// Calls `body` with the policy of a call, but for its sinks, which only the forward pass asks for.
template <class Call, class Body>
void with_policy(const Call& f, Body body) {
  stage_75::with_softcap(f.problem, stage_72::window_of(f.problem), [&](const auto& softcap) {
    stage_76::with_alibi(f, softcap, [&](const auto& alibi) {
      stage_74::with_documents(f, stage_78::dropout_of(f.problem, alibi), body);
    });
  });
}

void forward(const Forward& f) {
  for_masked_row<stage_70::table, ForTest{}>(of_64_or_128(f.problem), [&](auto chosen) {
    with_policy(f, [&](const auto& others) {
      stage_77::with_sinks(f, others,
                           [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
    });
  });
}

void backward(const Backward& f) {
  stage_74::require_all_used(f.problem);
  for_masked_row<stage_71::table, ForTest{}>(of_64_or_128(f.problem), [&](auto chosen) {
    with_policy(f, [&](const auto& policy) {
      stage_71::backward_with(f, chosen, policy, stage_77::SinkGradient{f});
    });
  });
}

}  // namespace

const Stage together{
    .number = 79,
    .name = "together",
    .title = "together",
    .idea = "policies stand on top of each other",
    .claim = "none",
    .before = 72,
    .supports = {.dtypes = tested_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true,
                              .softcap = true,
                              .alibi = true,
                              .sinks = true,
                              .dropout = true,
                              .packing = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder
