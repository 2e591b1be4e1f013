// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_27 {

using namespace claims;

namespace {

/// As Tile in attention.cu.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = p.d <= 128 ? 128 : 64, .Bc = 32, .R = 4, .warps = 4, .num_buffers = p.d <= 128 ? 2 : 1};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 128, .Bc = 32, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"barriers", BH * ((3 - num_buffers) * sum(live_i) + Tr * scale_is_negative)},
      {"bytes_in_flight", 0},
      {"flops_during_copies", 2 * Br * Bc * d * BH * sum(max(2 * live_i - num_buffers, 0))},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * d},
  };
  return claim;
}

}  // namespace flashladder::stage_27
