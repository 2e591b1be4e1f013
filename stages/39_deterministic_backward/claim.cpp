// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "stages/39_deterministic_backward/table.hpp"

namespace flashladder::stage_39 {

using namespace claims;
using namespace tiles_39;

namespace {

/// What the emulator runs; fp32 inputs are rounded to fp16 for it.
ClaimedTile tile_for(const Problem& p) {
  const Dtype dtype = p.dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp16;
  const Row& row = row_for(table, 90, dtype, p.d, p.causal);
  const Tile& tile = row.tile;
  return {.Br = tile.Br,
          .Bc = tile.Bc,
          .D = row.d,
          .warps = tile.warps,
          .share = tile.share,
          .num_buffers = tile.num_buffers,
          .step = tile.step};
}

/// Lanes that compute D of a row.
const Expr lanes("lanes", [](const Symbols& n) { return n.D % 64 == 0 ? 8 : 4; });

}  // namespace

Claim claim() {
  // Splits divide the tiles of keys: for 256 blocks or more, at least two tiles for each where there are,
  // and as many for each.
  const Expr most = min(ceil_div(256, BHkv), ceil_div(Tc, 2));
  const Expr splits = named("splits", ceil_div(Tc, ceil_div(Tc, most)));
  // Those of them that add to row tile i.
  const Expr parts_i = named("parts_i", min(live_i, splits));
  const Expr fragments = ceil_div(Nq, 16);  // of 16 rows
  Claim claim{.tile = {.Br = 64, .Bc = 128}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.dropped = {"global.dQ_sum.written_elements", "global.dQ_sum.atomic_elements",
                            "global.dQ_sum.read_elements"};
  claim.backward.forms = {
      {"global.dQ_split.written_elements", BH * sum(live_i) * Br * D},
      {"global.dQ_split.read_elements",
       BH * (sum(live_i - parts_i) * Br + 16 * sum(parts_i * ceil_div(rows_i, 16))) * D},
      {"global.dQ_split.atomic_elements", 0},
      {"device_bytes", 4 * BH * Tr * Br * (2 + splits * D)},
      {"blocks", BHkv * splits + BH * (Tr * Br * lanes / 128 + ceil_div(fragments * D, 128))},
      {"barriers", 2 * BH * sum(live_i) + BHkv * (2 * Tc - splits)},
      {"atomics", 0},
  };
  return claim;
}

}  // namespace flashladder::stage_39
