// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_42 {

using namespace claims;

Claim claim() {
  Claim claim;
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  // Beside S this tile of V and the next of K and V are in flight; beside P~ V the next of both, and the
  // one of K behind it.
  const Expr keys = min(live_i * Bc, Nk), next = max(keys - Bc, 0), behind_it = max(keys - 2 * Bc, 0);
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"mbarrier_arrivals", BH * (live_blocks + sum(live_i) * (2 + 8 * warpgroups))},
      {"mbarrier_waits", BH * (128 * warpgroups * live_blocks + sum(live_i) * (2 + 256 * warpgroups))},
      {"barriers", BH * sum(1)},
      {"flops_during_copies", 2 * Br * Bc * D * BH * sum(max(2 * live_i - 1, 0))},
      {"wgmma_bytes_in_flight",
       2 * BH * warps * sum(D / 16 * (keys + 2 * next) + Bc / 16 * (2 * next + behind_it)) * d},
      {"most_registers", 240},
      {"fewest_registers", 24},
      {"named_barriers", BH * warpgroups * (sum(1) + scale_is_negative * live_blocks)},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * D + 32 * num_buffers + 16},
  };
  return claim;
}

}  // namespace flashladder::stage_42
