// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_24 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"exp2", BH * sum(live_i) * Br * (Bc + R)},
      {"mul", BH * sum(live_i) * Br * (Bc + d + 2 * R) + BH * Tr * Br * d + BH * Nq},
      {"fma", BH * sum(live_i) * Br * Bc},
      {"barriers", BH * (2 * sum(live_i) + Tr * scale_is_negative)},
  };
  return claim;
}

}  // namespace flashladder::stage_24
