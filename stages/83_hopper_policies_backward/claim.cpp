// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_83 {

using namespace claims;
using stage_70::launched;

// That plain attention takes the operations of stage 61 is a test of its own, gpu_claims_test.cpp; those of
// the variants are claimed by stages 75 to 78.
Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.change = stage_70::sum_up;
  claim.backward.forms = {};
  claim.backward.dropped = {"exp", "exp2", "mul", "div", "fma"};
  return claim;
}

}  // namespace flashladder::stage_83
