// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_72 {

using namespace claims;

namespace {

/// Those of stages 70 and 71 under the causal mask.
ClaimedTile tile_for(const Problem& p) {
  return claim_of(find_stage(70))->symbols(with_mask(p));
}
ClaimedTile backward_tile_for(const Problem& p) {
  return claim_of(find_stage(71))->symbols(with_mask(p));
}

// Of a row's first tile its window may leave a few keys. Then its first m is the maximum of these few, and
// some row gets another one also where the numbers are random.
constexpr bool least = true, random_too = true;

}  // namespace

Claim claim() {
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  Claim claim{.tile = {.Br = 128, .Bc = 128}, .tile_for = tile_for, .backward_tile_for = backward_tile_for};
  claim.forward.as_before = claim.backward.as_before = true;
  claim.forward.forms = {
      {"global.K.read_elements", BH * sum(keys_i) * d},
      {"global.V.read_elements", BH * sum(keys_i) * d},
      {"exp", BH * Br * (sum(live_i) * Bc + R * live_blocks), least, random_too},
      {"exp2", BH * Br * (sum(live_i) * Bc + R * live_blocks), least, random_too},
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + (D + R) * live_blocks + Tr * D) + BH * Nq, least,
       random_too},
  };
  claim.backward.forms = {
      {"flops_during_copies", (8 * num_buffers - 6) * Br * Bc * D * (BH * sum(live_i) - seen)},
      {"global.K.read_elements", seen_keys * d},
      {"global.V.read_elements", seen_keys * d},
  };
  return claim;
}

}  // namespace flashladder::stage_72
