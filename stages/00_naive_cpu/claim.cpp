// What this stage computes, reads and allocates, in the symbols of the problem and its tile.
#include "common/claims/cpu_claim.hpp"

namespace flashladder::stage_00 {

using namespace claims;

namespace {

/// A whole head at a time.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = p.Nq, .Bc = p.Nk};
}

}  // namespace

CpuClaim claim() {
  CpuClaim claim{.tile_for = tile_for};
  claim.forward.forms = {
      {"extra_memory", Rule::exact, 4 * (2 * Nq * Nk)},
      {"score_reads", Rule::exact, 3 * BH * pairs},
      {"scores_made", Rule::exact, BH * pairs},
      {"K_reads", Rule::at_most, BH * pairs * d},
      {"V_reads", Rule::at_most, BH * pairs * d},
      {"exp", Rule::at_most, 2 * BH * pairs},
      {"div", Rule::at_most, BH * pairs},
      {"workspace_writes", Rule::at_least, 2 * BH * pairs},
      // An eighth more than the stage's own.
      {"operations", Rule::at_most, floor_div(9 * BH * pairs * (4 * d + 4), 8), is_price},
      {"allocations", Rule::exact, 0, is_price},
      {"other_memory", Rule::exact, 0, is_price},
  };
  return claim;
}

}  // namespace flashladder::stage_00
