// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_20 {

using namespace claims;

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 32, .R = 4}};  // lanes that hold a row of S and O
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"flops_tensor_cores", 4 * Br * Bc * d * BH * sum(live_i)},  // all of them
      {"flops_cuda_cores", 0},
      {"bytes_in_flight", 0},
      {"flops_during_copies", 0},
      {"shared.P.array_bytes", 0},
      {"shared_bytes_per_block", 2 * (Br + 2 * Bc) * d},
  };
  return claim;
}

}  // namespace flashladder::stage_20
