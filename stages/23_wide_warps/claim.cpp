// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_23 {

using namespace claims;

namespace {

/// As Tile in attention.cu.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = p.d <= 128 ? 128 : 64, .Bc = 32, .R = 4};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 128, .Bc = 32, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  return claim;
}

}  // namespace flashladder::stage_23
