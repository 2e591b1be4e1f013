// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "stages/29_tuned/table.hpp"

namespace flashladder::stage_29 {

using namespace claims;
using namespace tiles_29;

namespace {

/// What the emulator runs; fp32 inputs are rounded to fp16 for it.
ClaimedTile tile_for(const Problem& p) {
  const auto& row = row_for(table, 90, p.dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp16, p.d, p.causal);
  return {.Br = row.tile.Br,
          .Bc = row.tile.Bc,
          .R = 4,
          .D = row.d,
          .warps = row.tile.warps,
          .num_buffers = row.tile.num_buffers};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 128, .Bc = 128}, .tile_for = tile_for};
  claim.forward.as_before = true;
  return claim;
}

}  // namespace flashladder::stage_29
