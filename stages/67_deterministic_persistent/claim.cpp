// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/staying_blocks.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_67 {

using namespace claims;

namespace {

/// Where blocks stay a counter has its persistent form, if there is one; else that of the stage before.
void where_blocks_stay(ClosedForm& form) {
  static const StayingBlocks stay{multiprocessors(), L2_bytes()};
  static const std::vector<ClosedForm> persistent = [] {
    const Expr parts = ceil_div(Nk, 128);  // of 128 keys, whose largest numbers are found together
    const Expr rows = BH * Tr * Br;        // each with a unit of its own
    std::vector<ClosedForm> forms = stay.forms();
    forms.insert(forms.end(),
                 {{"blocks", stay.blocks() + BHkv * ceil_div(parts, 4) +
                                 BH * (Tr * Br / 16 + ceil_div(ceil_div(Nq, 16) * D, 128))},
                  {"global.units.read_elements",
                   256 * warpgroups * (BH * sum(live_i) + stay.blocks()) + 2 * BH * ceil_div(Nq, 16) * D},
                  {"atomics", BH * sum(live_i) * Br * D / 2 + stay.drawn()},  // two integers each
                  {"device_bytes", 4 * rows * (3 + D) + 8 * BHkv * parts + 4}});
    return forms;
  }();
  change_where(form, persistent, "if blocks stay",
               [](const Symbols& n) { return has_few_row_tiles(n, 32); });
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.same_sums = true;
  claim.backward.as_before = true;
  claim.backward.change = where_blocks_stay;
  // Not claimed: on a GPU the block that is ready first draws next.
  claim.backward.dropped = {"most_tiles_of_multiprocessor"};
  return claim;
}

}  // namespace flashladder::stage_67
