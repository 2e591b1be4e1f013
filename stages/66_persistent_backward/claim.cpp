// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/staying_blocks.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_66 {

using namespace claims;

namespace {

/// Where blocks stay a counter has its persistent form, if there is one; else that of the stage before.
void where_blocks_stay(ClosedForm& form) {
  static const StayingBlocks stay{multiprocessors(), L2_bytes()};
  static const std::vector<ClosedForm> persistent = [] {
    std::vector<ClosedForm> forms = stay.forms();
    forms.insert(
        forms.end(),
        {{"blocks", stay.blocks() + BH * (Tr * Br * 8 / 128 + ceil_div(ceil_div(Nq, 16) * D, 128))},
         {"atomics", BH * sum(live_i) * Br * D + stay.drawn()},
         {"device_bytes", 4 * BH * Tr * Br * (2 + D) + 4}});
    return forms;
  }();
  change_where(form, persistent, "if blocks stay",
               [](const Symbols& n) { return has_few_row_tiles(n, 12); });
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.change = where_blocks_stay;
  // Not claimed: on a GPU the block that is ready first draws next.
  claim.backward.dropped = {"most_tiles_of_multiprocessor"};
  return claim;
}

}  // namespace flashladder::stage_66
