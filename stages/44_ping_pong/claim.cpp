// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_44 {

using namespace claims;

Claim claim() {
  Claim claim;
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  // The turns: each warpgroup takes one before P~ V of a tile, and all but the first one before their first
  // S.
  const Expr turns = sum(warpgroups * live_i + (warpgroups - 1) * min(live_i, 1));
  // Beside S this tile of V and the next of K and V are in flight; beside P~ V the next of V, and the one
  // of K behind it. Of the next of K the first warpgroup alone does not know that it has come: before the
  // others' turn it has waited for it.
  const Expr keys = min(live_i * Bc, Nk), next = max(keys - Bc, 0), behind_it = max(keys - 2 * Bc, 0);
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"named_barriers", BH * (warpgroups * (sum(1) + scale_is_negative * live_blocks) + turns)},
      {"wgmma_bytes_in_flight",
       2 * BH *
           (warps * sum(D / 16 * (keys + 2 * next) + Bc / 16 * (next + behind_it)) +
            4 * Bc / 16 * sum(next)) *
           d},
      {"unordered_wgmmas", 0},
  };
  return claim;
}

}  // namespace flashladder::stage_44
