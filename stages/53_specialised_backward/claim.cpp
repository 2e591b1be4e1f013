// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"

namespace flashladder::stage_53 {

using namespace claims;

namespace {

/// Bytes of Q and L2, or of dO and D, of the first two tiles of all blocks.
const Expr first("first", [](const Symbols& n) { return bytes_of_tile(n, 0); });
const Expr second("second", [](const Symbols& n) { return bytes_of_tile(n, 1); });

}  // namespace

Claim claim() {
  Claim claim;
  // Beside a product of a tile Q, L2, dO and D of the next one are in flight, and beside S its own dO and
  // D, too. Beside dQ it is also what takes the buffers over that the tile has released before.
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * BH * sum(live_i) * Br);
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"mbarrier_arrivals", BHkv * Tc + BH * sum(live_i) * (2 + 8 * warpgroups)},
      {"mbarrier_waits", 128 * warpgroups * BHkv * Tc + BH * sum(live_i) * (2 + 256 * warpgroups)},
      {"barriers", BHkv * Tc},
      {"wgmma_bytes_in_flight", warps * ((2 * D + 2 * Br + Bc) / 8 * (all - first) + D / 16 * all +
                                         Bc / 8 * (all - first - second))},
      {"flops_during_copies", Br * Bc * D * (10 * BH * sum(live_i) - 8 * BHkv * Tc)},
      {"most_registers", 240},
      {"fewest_registers", 24},
      {"named_barriers", BH * sum(live_i) + BHkv * Tc},
      {"shared_bytes_per_block",
       4 * (Bc + num_buffers * Br) * D + 2 * num_buffers * Br * Bc + 8 * num_buffers * (Br + 4) + 16},
  };
  return claim;
}

}  // namespace flashladder::stage_53
