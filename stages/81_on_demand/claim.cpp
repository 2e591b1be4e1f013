// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/attention/stage.hpp"
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_81 {

// Tiles, bytes and FLOPs are as before. That operations are those of the variants that a call asks for is a
// test of its own, gpu_claims_test.cpp: they are compared with what stages 75 and 78 count.
Claim claim() {
  Claim claim;
  claim.forward.as_before = claim.backward.as_before = true;
  return claim;
}

}  // namespace flashladder::stage_81
