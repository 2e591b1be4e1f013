// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_46 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 96, 128, 192, 256>(p.d);
  const int warpgroups = D <= 64 ? 4 : D <= 128 ? 3 : 2;
  return {.Br = 64 * warpgroups,
          .Bc = D == 64    ? 64
                : D == 96  ? 112
                : D == 128 ? 80
                : D == 192 ? 112
                           : 80,
          .R = 4,
          .D = D,
          .warps = 4 * warpgroups,
          .num_buffers = 2,
          .warpgroups = warpgroups,
          .panels = D == 96 ? 3 : D / 64};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 256, .Bc = 112, .R = 4}, .tile_for = tile_for};
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  // A thread has 8 eights registers at launch. Where the producer's warpgroup keeps 24 = 8 * 3, the others
  // can have so many.
  const Expr eights = named("eights", floor_div(64, 1 + warpgroups));
  const Expr registers = 8 * floor_div((1 + warpgroups) * eights - 3, warpgroups);
  const Expr producer_registers = {"32 for 3 warpgroups, else 24",
                                   [](const Symbols& n) { return n.warpgroups == 3 ? 32 : 24; }};
  // Beside S of the first tile its V and the next K and V are in flight, beside S of another tile its V,
  // the next K and V of the tile before; beside P~ V of a tile the next V and the next but one K.
  const Expr keys = min(live_i * Bc, Nk), next = max(keys - Bc, 0), behind_it = max(keys - 2 * Bc, 0),
             all_but_last = max(live_i - 1, 0) * Bc;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"wgmma_bytes_in_flight",
       2 * BH * warps *
           sum(D / 16 * (keys + 2 * next - behind_it + all_but_last) + Bc / 16 * (next + behind_it)) * d},
      {"most_registers", registers},
      {"fewest_registers", producer_registers},
      {"named_barriers", BH * warpgroups * (sum(1) + scale_is_negative * live_blocks)},
      {"max", BH * sum(live_i) * Br * (Bc + 2 * R)},
  };
  // Nothing orders the warpgroups but the buffers, of which none can be two tiles ahead.
  claim.forward.dropped = {"unordered_wgmmas"};
  return claim;
}

}  // namespace flashladder::stage_46
