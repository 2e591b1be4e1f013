// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_47 {

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

// At least so much: of random numbers, too, some ask for the maximum of their row once more. Where all
// scores that a thread has of a row are negative, or masked, it asks.
constexpr bool least = true, random_too = true;

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 256, .Bc = 112, .R = 4}, .tile_for = tile_for};
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + R * live_blocks + Tr * D) + BH * Nq, least, random_too},
      {"shuffles", BH * (live_blocks + 2 * Tr) * Br / 4, least, random_too},
      {"max", BH * Br * (sum(live_i) * (Bc / 2) + (Bc + 2 * R) * live_blocks), least, random_too},
  };
  // That of asking is left out where the largest score is negative.
  claim.forward.dropped = {"fma"};
  return claim;
}

}  // namespace flashladder::stage_47
