// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"

namespace flashladder::stage_60 {

using namespace claims;

namespace {

/// 1 where S of a tile begins in the one before.
const Expr early_scores("[D > 64]", [](const Symbols& n) { return n.D > 64 ? 1 : 0; });

/// Blocks that have more than one tile.
const Expr several("several", blocks_of_several_tiles);

/// A warpgroup that gives Q back has begun S of the next tile: the other one knows it when it gets Q of the
/// tile behind that, so that its S, dP and dV there come later. All tiles of a block but two have an S
/// that is known so, and D / 16 wgmmas come before (2 D + Br) / 16, in either warpgroup.
void order_scores(ClosedForm& form) {
  if (form.counter != "unordered_wgmmas") return;
  form.count =
      form.count - early_scores * (BH * sum(live_i) - BHkv * Tc - several) * (D * (2 * D + Br) / 128);
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.change = order_scores;
  return claim;
}

}  // namespace flashladder::stage_60
