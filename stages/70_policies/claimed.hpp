#pragma once
// What a variant begins its claim with, whose kernels are those of stages 70 and 71 for 64 and 128 columns.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_70 {

/// All forms are as before, for these kernels' tiles.
inline Claim claim_of_64_or_128() {
  Claim claim;
  claim.tile = {.Br = 128, .Bc = 128};
  claim.tile_for = [](const Problem& p) -> ClaimedTile {
    return claim_of(find_stage(70))->symbols(of_64_or_128(p));
  };
  claim.backward_tile_for = [](const Problem& p) -> ClaimedTile {
    return claim_of(find_stage(71))->symbols(of_64_or_128(p));
  };
  claim.forward.as_before = claim.backward.as_before = true;
  return claim;
}

}  // namespace flashladder::stage_70
