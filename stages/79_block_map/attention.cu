// Block map: a tensor says which blocks of 128 rows and 128 keys are computed at all. The other tiles are
// neither copied nor multiplied: a warp looks up 32 blocks at once, and a vote of its lanes finds the next.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/79_block_map/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/79_block_map/launch.hpp"

namespace flashladder::stage_79 {
namespace {

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128>(f.problem, [&](auto chosen) {
    with_block_map(f, stage_72::window_of(f.problem),
                   [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
  });
}

void backward(const Backward& f) {
  for_masked_row_of<stage_71::table, 64, 128>(f.problem, [&](auto chosen) {
    with_block_map(f, stage_72::window_of(f.problem),
                   [&](const auto& policy) { stage_71::backward_with(f, chosen, policy); });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 79,
    .name = "block_map",
    .title = "block map",
    .idea =
        "a tensor says which blocks of 128 rows and 128 keys are computed; tiles of the others are "
        "skipped, wherever they are",
    .claim =
        "tiles are those of live blocks, and all else is in proportion; of the map each warp reads 4 bytes "
        "of each block on its way",
    .before = 72,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true, .block_map = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_79
