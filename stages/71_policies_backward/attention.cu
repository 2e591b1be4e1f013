// Policies, backward: the kernel asks the policy which rows see a key, what a score becomes, and for the
// slope of that: dS is multiplied with it. With the policy of plain attention the compiler makes of it what
// it makes of stage 38.
#include "common/kernel/host.hpp"

#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"

namespace flashladder::stage_71 {
namespace {

void backward(const Backward& f) {
  for_row<table>(f.problem, [&](auto chosen) {
    constexpr Row row = chosen;
    backward_with(f, chosen, stage_70::Plain<row.causal>());
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 71,
    .name = "policies_backward",
    .title = "policies backward",
    .idea =
        "the backward pass takes the policy too: which rows see a key, and the slope of what becomes of a "
        "score",
    .claim = "all forms are stage 38's: with the policy of plain attention nothing is counted more or less",
    .before = 38,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .backward = backward,
};

}  // namespace flashladder::stage_71
