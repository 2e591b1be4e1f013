// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_13 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.dropped = {"global.m.read_elements", "global.l.read_elements", "global.m.written_elements",
                           "global.l.written_elements"};
  claim.forward.forms = {
      {"global.Q.read_elements", BH * Nq * d},
      {"global.K.read_elements", BH * Tr * Nk * d},
      {"global.V.read_elements", BH * Tr * Nk * d},
      {"global.O.read_elements", 0},
      {"global.O.written_elements", BH * Nq * d},
      {"device_bytes", 0},
      {"blocks", BH * Tr},
  };
  return claim;
}

}  // namespace flashladder::stage_13
