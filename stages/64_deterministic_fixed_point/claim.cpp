// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_64 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.forms = {{"dependent_launches", 3}};
  return claim;
}

}  // namespace flashladder::stage_64
