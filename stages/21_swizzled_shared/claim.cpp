// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_21 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"shared.K.read_bytes", 2 * (4 * BH * sum(live_i) * Bc * d)},  // each of 4 warps reads all
      {"shared.V.read_bytes", 2 * (4 * BH * sum(live_i) * Bc * d)},
  };
  return claim;
}

}  // namespace flashladder::stage_21
