// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "stages/29_tuned/table.hpp"

namespace flashladder::stage_29 {

using namespace claims;
using namespace tiles_29;

namespace {

// At least so much, since other numbers may need more: each row gets its m in its first tile, and keeps it
// where no later score is larger by a factor of 2^8 after the exponential, as with random numbers. Each
// time that a row does not, it takes R more exponentials and D + R more multiplications.
constexpr bool least = true;

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

const Expr scale_is_negative("[scale < 0]", [](const Symbols& n) { return n.problem.scale < 0 ? 1 : 0; });

}  // namespace

Claim claim() {
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  Claim claim{.tile = {.Br = 128, .Bc = 128}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.dropped = {"bytes_in_flight"};
  claim.forward.forms = {
      {"flops_tensor_cores", 4 * Br * Bc * D * BH * sum(live_i)},
      {"flops_during_copies", 2 * Br * Bc * D * BH * sum(max(2 * live_i - num_buffers, 0))},
      {"exp", BH * Br * (sum(live_i) * Bc + R * live_blocks), least},
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + (D + R) * live_blocks + Tr * D) + BH * Nq, least},
      {"barriers", BH * sum(max((3 - num_buffers) * live_i, 1) + scale_is_negative)},
      {"shared.K.read_bytes", 2 * warps * BH * sum(live_i) * Bc * D},  // each warp reads all
      {"shared.V.read_bytes", 2 * warps * BH * sum(live_i) * Bc * D},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * D},
  };
  return claim;
}

}  // namespace flashladder::stage_29
