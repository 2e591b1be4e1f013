// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_34 {

using namespace claims;

namespace {

/// Where two warps share 16 keys, at d = 256, shared memory holds one buffer of Q and dO.
ClaimedTile tile_for(const Problem& p) {
  const bool large = p.d > 128;
  return {
      .Br = 32, .Bc = large ? 32 : 64, .warps = 4, .share = large ? 2 : 1, .num_buffers = large ? 1 : 2};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 32, .Bc = 64}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.forms = {
      // all five products with two buffers, that of dQ with one
      {"flops_during_copies", (8 * num_buffers - 6) * Br * Bc * d * (BH * sum(live_i) - BHkv * Tc)},
  };
  return claim;
}

}  // namespace flashladder::stage_34
