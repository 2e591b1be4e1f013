// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_23 {

using namespace claims;

namespace {

/// As Tile in attention.cu.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = p.d <= 128 ? 128 : 64, .Bc = 32, .R = 4};
}

/// Fragments of 16 rows that a warp has: it reads each fragment of K and V once for all of them.
const Expr row_frags("row_frags", [](const Symbols& n) { return n.problem.d <= 128 ? 2 : 1; });

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 128, .Bc = 32, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"shared.K.read_bytes", 2 * (Br / (16 * row_frags) * BH * sum(live_i) * Bc * d)},
      {"shared.V.read_bytes", 2 * (Br / (16 * row_frags) * BH * sum(live_i) * Bc * d)},
  };
  return claim;
}

}  // namespace flashladder::stage_23
