// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/column_blocks.hpp"
#include "stages/38_tuned_backward/table.hpp"

namespace flashladder::stage_38 {

using namespace claims;
using namespace tiles_38;

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

/// Column blocks that a tile of dQ is shared out in: those with the fewest reads of dS and K.
const Expr blocks("blocks", [](const Symbols& n) {
  return column_blocks(static_cast<int>(n.Br), static_cast<int>(n.D), static_cast<int>(n.warps));
});
/// Lanes that compute D of a row.
const Expr lanes("lanes", [](const Symbols& n) { return n.D % 64 == 0 ? 8 : 4; });

}  // namespace

Claim claim() {
  const Expr groups = named("groups", warps / share);  // of warps, each with keys of its own
  const Expr fragments = ceil_div(Nq, 16);             // of 16 rows
  Claim claim{.tile = {.Br = 64, .Bc = 128}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.dropped = {"shared.P.array_bytes"};
  claim.backward.forms = {
      {"global.L2.written_elements", BH * Tr * Br},
      {"global.L2.read_elements", BH * sum(live_i) * Br},
      {"global.D.written_elements", BH * Tr * Br},
      {"global.D.read_elements", BH * sum(live_i) * Br},
      {"global.dQ_sum.written_elements", BH * Tr * Br * D},
      {"global.dQ_sum.atomic_elements", BH * sum(live_i) * Br * D},
      {"global.dQ_sum.read_elements", 16 * BH * fragments * D},
      {"device_bytes", 4 * BH * Tr * Br * (2 + D)},
      {"blocks", BHkv * Tc + BH * (Tr * Br * lanes / 128 + ceil_div(fragments * D, 128))},
      {"flops_tensor_cores", 10 * Br * Bc * D * BH * sum(live_i)},
      {"flops_during_copies", (8 * num_buffers - 6) * Br * Bc * D * (BH * sum(live_i) - BHkv * Tc)},
      {"mul",
       2 * BH * sum(live_i) * Br * Bc + BH * (Nq * (1 + d) + 16 * fragments * D) + BHkv * Tc * Bc * D},
      {"atomics", BH * sum(live_i) * Br * D},
      {"shared.dS.read_bytes", 2 * blocks * BH * sum(live_i) * Br * Bc},
      {"shared.Q.read_bytes", 2 * (2 * groups * BH * sum(live_i) * Br * D)},
      {"shared.dO.read_bytes", 2 * (2 * groups * BH * sum(live_i) * Br * D)},
      // BHkv Tc: dK and dV are written through what was K and V
      {"shared.K.read_bytes", 2 * ((Br / step + warps / blocks) * BH * sum(live_i) + BHkv * Tc) * Bc * D},
      {"shared.V.read_bytes", 2 * (Br / step * BH * sum(live_i) + BHkv * Tc) * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_38
