// Dropout: in training some P are left out by chance, and the others are made larger for it. Chance goes by
// position: Philox makes random bytes of a head, a row and a key, so that the backward pass finds the same
// ones, whatever its tiles, and nothing is stored.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/78_dropout/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/78_dropout/launch.hpp"

namespace flashladder::stage_78 {
namespace {

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128>(f.problem, [&](auto chosen) {
    with_dropout(f, stage_72::window_of(f.problem),
                 [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
  });
}

void backward(const Backward& f) {
  for_masked_row_of<stage_71::table, 64, 128>(f.problem, [&](auto chosen) {
    with_dropout(f, stage_72::window_of(f.problem),
                 [&](const auto& policy) { stage_71::backward_with(f, chosen, policy); });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 78,
    .name = "dropout",
    .title = "dropout",
    .idea =
        "some P are left out by chance, and chance goes by position: the backward pass finds the same "
        "ones, "
        "and nothing is stored",
    .claim = "no byte more is read, written or kept than without dropout, forward and backward",
    .before = 72,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true, .dropout = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_78
