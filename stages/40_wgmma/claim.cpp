// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_40 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  int D = 256;
  for (const int columns : {192, 128, 96, 64}) D = p.d <= columns ? columns : D;
  return {.Br = 128, .Bc = 64, .R = 4, .D = D, .warps = 8, .num_buffers = 2};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 128, .Bc = 64, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  return claim;
}

}  // namespace flashladder::stage_40
