// Documents: sequences of any lengths lie one after the other in the rows and keys of one tensor, and each
// is attention of its own. A block finds its sequence, and from there on works as if there were no other:
// its tiles begin where the sequence begins, and what lies behind its end is never copied.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/74_documents/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/74_documents/launch.hpp"

namespace flashladder::stage_74 {
namespace {

void forward(const Forward& f) {
  for_masked_row_of<stage_70::table, 64, 128>(f.problem, [&](auto chosen) {
    with_documents(f, stage_72::window_of(f.problem),
                   [&](const auto& policy) { stage_70::forward_with(f, chosen, policy); });
  });
}

void backward(const Backward& f) {
  require_all_used(f.problem);
  for_masked_row_of<stage_71::table, 64, 128>(f.problem, [&](auto chosen) {
    with_documents(f, stage_72::window_of(f.problem),
                   [&](const auto& policy) { stage_71::backward_with(f, chosen, policy); });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 74,
    .name = "documents",
    .title = "packed documents",
    .idea =
        "sequences of any lengths lie in one tensor without padding; a block finds the one it works on, "
        "and "
        "knows no other",
    .claim =
        "tiles, bytes and FLOPs are the sum of what each sequence takes by itself; at most one block a "
        "sequence and head has nothing to do",
    .before = 72,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true, .packing = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_74
