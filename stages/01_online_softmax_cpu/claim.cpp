// What this stage computes, reads and allocates: what changed since the stage before.
#include "common/claims/cpu_claim.hpp"

namespace flashladder::stage_01 {

using namespace claims;

CpuClaim claim() {
  CpuClaim claim{.tile = {.Br = 1, .Bc = 1}};
  claim.forward.as_before = true;
  claim.forward.dropped = {"workspace_writes"};
  claim.forward.forms = {
      {"extra_memory", Rule::exact, 4 * d},
      {"score_reads", Rule::exact, BH * pairs},
      {"div", Rule::at_most, BH * Nq * d},
      {"output_writes", Rule::at_most, BH * Nq * (d + 1)},
      // An eighth more than the stage's own.
      {"operations", Rule::at_most, floor_div(9 * BH * pairs * (5 * d + 6), 8), is_price},
  };
  return claim;
}

}  // namespace flashladder::stage_01
