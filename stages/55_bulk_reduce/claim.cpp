// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_55 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"atomics", 0},
      {"bulk_reduces", warps * BH * sum(live_i)},
      {"shared.dQ.written_bytes", 4 * BH * sum(live_i) * Br * D},
      {"shared.dQ.read_bytes", 4 * BH * sum(live_i) * Br * D},
      {"shared_bytes_per_block", 4 * (Bc + num_buffers * Br) * D + 2 * num_buffers * Br * Bc + 4 * Br * D +
                                     8 * num_buffers * (Br + 4) + 16},
  };
  return claim;
}

}  // namespace flashladder::stage_55
