// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_41 {

using namespace claims;

Claim claim() {
  Claim claim;
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"tma_loads", panels * BH * (live_blocks + 2 * sum(live_i))},
      {"tma_read_bytes", 2 * BH * sum(min(live_i, 1) * rows_i + 2 * min(live_i * Bc, Nk)) * d},
      {"global.Q.read_elements", BH * sum(min(live_i, 1) * rows_i) * d},
      {"async_copies", 0},
      {"copying_threads", BH * live_blocks},
      {"mbarrier_arrivals", BH * sum(live_i)},
      {"mbarrier_waits", 32 * warps * BH * sum(live_i)},
      {"barriers", BH * (sum(live_i + 1) + scale_is_negative * live_blocks)},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * D + 8 * num_buffers},
  };
  // It says only on which side of the barrier a tile is waited for.
  claim.forward.dropped = {"bytes_in_flight"};
  return claim;
}

}  // namespace flashladder::stage_41
