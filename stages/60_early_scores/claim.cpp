// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"

namespace flashladder::stage_60 {

using namespace claims;

namespace {

/// Bytes of Q and L2, or of dO and D, of the first tile of all blocks.
const Expr first("first", [](const Symbols& n) { return bytes_of_tile(n, 0); });

}  // namespace

Claim claim() {
  Claim claim;
  // Beside a product of a tile Q, L2, dO and D of the next one are in flight, and beside S its own dO and
  // D, too.
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * BH * sum(live_i) * Br);
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"wgmma_waits", 4 * 128 * warpgroups * BH * sum(live_i)},
      {"wgmma_bytes_in_flight", warps * ((2 * D + 2 * Br + Bc) / 8 * (all - first) + D / 16 * all)},
      {"exp_during_wgmmas", BH * sum(live_i) * Br * Bc},
  };
  return claim;
}

}  // namespace flashladder::stage_60
