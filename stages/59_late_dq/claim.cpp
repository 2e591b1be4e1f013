// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"

namespace flashladder::stage_59 {

using namespace claims;

namespace {

/// Bytes of Q and L2, or of dO and D, of the first two tiles of all blocks.
const Expr first("first", [](const Symbols& n) { return bytes_of_tile(n, 0); });
const Expr second("second", [](const Symbols& n) { return bytes_of_tile(n, 1); });

/// Blocks that have more than one tile.
const Expr several("several", blocks_of_several_tiles);

}  // namespace

Claim claim() {
  Claim claim;
  // Beside a product of a tile Q, L2, dO and D of the next one are in flight, and beside S its own dO and
  // D, too. dQ of a tile has those of the next but one.
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * BH * sum(live_i) * Br);
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"named_barriers", BHkv * Tc},
      {"mbarrier_arrivals", BHkv * Tc + BH * sum(live_i) * (2 + 16 * warpgroups)},
      {"mbarrier_waits", 128 * warpgroups * BHkv * Tc + BH * sum(live_i) * (2 + 512 * warpgroups)},
      {"wgmma_waits", 5 * 128 * warpgroups * BH * sum(live_i)},
      {"wgmma_bytes_in_flight",
       warps * ((D + Br) / 4 * (all - first) + D / 16 * all + Bc / 8 * (all - first - second))},
      // Of a block's last tile S has its dO beside it, and neither the other products nor dQ of the tile
      // before have anything.
      {"flops_during_copies", Br * Bc * D * (10 * BH * sum(live_i) - 8 * BHkv * Tc - 2 * several)},
      // Pairs of wgmmas, in sixteenths each. Those of a tile are in no order with those of the same tile of
      // the other warpgroup, and S, dP and dV of a tile with none of the tile before either. dQ is a tile
      // late, and the first two tiles do not wait for dS_empty.
      {"unordered_wgmmas", ((BH * sum(live_i) - BHkv * Tc) * (2 * D + 2 * Br + Bc) * (6 * D + 4 * Br + Bc) +
                            BHkv * Tc * (4 * (D + Br) * (D + Br) + Bc * (Bc + 2 * Br)) +
                            2 * several * (Br * Br + Bc * Bc - 2 * D * Bc)) /
                               256},
      {"shared_bytes_per_block",
       4 * (Bc + num_buffers * Br) * D + 2 * num_buffers * Br * Bc + 8 * num_buffers * (Br + 6) + 16},
  };
  return claim;
}

}  // namespace flashladder::stage_59
