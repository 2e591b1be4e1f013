// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_12 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"global.m.written_elements", BH * (Tc - 1) * Nq},
      {"global.l.written_elements", BH * (Tc - 1) * Nq},
      {"global.L.written_elements", BH * Nq},
      {"exp", BH * Tr * Tc * Br * (Bc + R)},
      {"div", BH * Tr * Br * R},
      {"mul", BH * Tr * Tc * Br * (Bc + d + R) + BH * Tr * Br * d},
      {"log", BH * Nq},
  };
  return claim;
}

}  // namespace flashladder::stage_12
