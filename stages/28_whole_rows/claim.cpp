// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_28 {

using namespace claims;

namespace {

/// As Tile in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<32, 64, 96, 128, 192, 256>(p.d);
  return {.Br = D <= 128 ? 128 : 64, .Bc = 32, .R = 4, .D = D, .warps = 4, .num_buffers = D <= 128 ? 2 : 1};
}

// At least so much, since other numbers may need more: each row gets its m in its first tile, and keeps it
// where no later score is larger by a factor of 2^8 after the exponential, as with random numbers. Each
// time that a row does not, it takes R more exponentials and D + R more multiplications.
constexpr bool least = true;

}  // namespace

Claim claim() {
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  Claim claim{.tile = {.Br = 128, .Bc = 32, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.whole_sectors_of_O = true;
  claim.forward.forms = {
      {"flops_tensor_cores", 4 * Br * Bc * D * BH * sum(live_i)},
      {"flops_during_copies", 2 * Br * Bc * D * BH * sum(max(2 * live_i - num_buffers, 0))},
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + (D + R) * live_blocks + Tr * D) + BH * Nq, least},
      {"barriers", BH * sum(max((3 - num_buffers) * live_i, 1) + scale_is_negative)},
      {"shared.K.read_bytes", 2 * warps * BH * sum(live_i) * Bc * D},
      {"shared.V.read_bytes", 2 * warps * BH * sum(live_i) * Bc * D},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * D},
  };
  return claim;
}

}  // namespace flashladder::stage_28
