// Sliding window: a row sees the keys around its own. A row tile begins with the tile of its first row's
// first key, so that what comes before is never copied; backward, a tile of keys ends with the last row
// that sees it. The work of a row no longer grows with the sequence.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"

namespace flashladder::stage_72 {
namespace {

void forward(const Forward& f) {
  for_masked_row<stage_70::table>(
      f.problem, [&](auto chosen) { stage_70::forward_with(f, chosen, window_of(f.problem)); });
}

void backward(const Backward& f) {
  for_masked_row<stage_71::table>(
      f.problem, [&](auto chosen) { stage_71::backward_with(f, chosen, window_of(f.problem)); });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 72,
    .name = "sliding_window",
    .title = "sliding window",
    .idea =
        "a row sees the keys around its own, and no other tile is copied: the work of a row is that of its "
        "window",
    .claim =
        "tiles BH sum(live_i): for a window of w keys at most ceil((Br + w - 1) / Bc) + 1 a row tile, "
        "however long the sequence",
    .before = 70,
    .before_backward = 71,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8, .features = {.window = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_72
