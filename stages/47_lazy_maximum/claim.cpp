// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_47 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 96, 128, 192, 256>(p.d);
  const int warpgroups = D <= 96 ? 3 : 2;
  return {.Br = 64 * warpgroups,
          .Bc = D == 64    ? 128
                : D == 96  ? 112
                : D == 128 ? 176
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
  const Expr registers = named("registers", 240 - 80 * (warpgroups - 2)),
             producer_registers = named("producer_registers", 24 + 8 * (warpgroups - 2));
  Claim claim{.tile = {.Br = 192, .Bc = 176, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"most_registers", registers},
      {"fewest_registers", producer_registers},
  };
  return claim;
}

}  // namespace flashladder::stage_47
