// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_22 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"bytes_in_flight", 8 * BH * sum(max(min(live_i * Bc, Nk) - Bc, 0)) * d},
      {"flops_during_copies", 4 * Br * Bc * d * BH * sum(max(live_i - 1, 0))},
      {"shared_bytes_per_block", 2 * (Br + 4 * Bc) * d},
  };
  return claim;
}

}  // namespace flashladder::stage_22
