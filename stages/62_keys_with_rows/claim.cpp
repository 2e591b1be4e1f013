// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_62 {

using namespace claims;

namespace {

/// V may be in flight beside S of a block's first tile.
void let_v_come(ClosedForm& form) {
  if (form.counter == "wgmma_bytes_in_flight")
    form.count = form.count + warps * (D / 16) * (2 * BHkv * Nk * d);
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.change = let_v_come;
  claim.backward.forms = {
      // K and V have no mbarrier of their own.
      {"mbarrier_arrivals", BH * sum(live_i) * (2 + 16 * warpgroups)},
      {"mbarrier_waits", BH * sum(live_i) * (2 + 512 * warpgroups)},
      {"shared_bytes_per_block",
       4 * (Bc + num_buffers * Br) * D + 2 * num_buffers * Br * Bc + 8 * num_buffers * (Br + 6)},
  };
  return claim;
}

}  // namespace flashladder::stage_62
