// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_35 {

using namespace claims;

namespace {

/// Up to 32 keys a warp; from d = 96 on two warps share them.
ClaimedTile tile_for(const Problem& p) {
  const bool large = p.d > 128;
  return {.Br = 32,
          .Bc = p.d <= 64 ? 128
                : large   ? 32
                          : 64,
          .warps = 4,
          .share = p.d <= 64 ? 1 : 2,
          .num_buffers = large ? 1 : 2};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 32, .Bc = 128}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"barriers", 2 * BH * sum(live_i) + BHkv * Tc},
  };
  return claim;
}

}  // namespace flashladder::stage_35
