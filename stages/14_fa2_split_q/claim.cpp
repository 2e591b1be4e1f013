// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_14 {

using namespace claims;

Claim claim() {
  // R, threads that hold a row of S and O: exp, div and mul are as before, with this one.
  Claim claim{.tile = {.Br = 32, .Bc = 32, .R = 8}};
  claim.forward.as_before = true;
  claim.forward.dropped = {"shared.m_part.written_elements", "shared.m_part.read_elements",
                           "shared.l_part.written_elements", "shared.O_part.written_elements"};
  claim.forward.forms = {
      {"barriers", 2 * BH * Tr * Tc},
      {"shared.m_part.array_bytes", 0},
      {"shared.l_part.array_bytes", 0},
      {"shared.O_part.array_bytes", 0},
  };
  return claim;
}

}  // namespace flashladder::stage_14
