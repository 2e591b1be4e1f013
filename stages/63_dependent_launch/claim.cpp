// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_63 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.forms = {{"dependent_launches", 2}};
  return claim;
}

}  // namespace flashladder::stage_63
