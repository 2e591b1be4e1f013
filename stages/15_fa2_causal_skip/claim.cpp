// What this stage moves, computes and allocates: what changed since the stage before. Of row tile i, live_i
// is the number of tiles of keys that some row sees, whole_i that of those which every row sees in full.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_15 {

using namespace claims;

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"global.K.read_elements", BH * sum(min(live_i * Bc, Nk)) * d},
      {"global.V.read_elements", BH * sum(min(live_i * Bc, Nk)) * d},
      {"tiles", BH * sum(live_i)},
      {"masked_tiles", BH * sum(live_i - whole_i)},
      {"flops_cuda_cores", 4 * Br * Bc * d * BH * sum(live_i)},
      {"exp", BH * sum(live_i) * Br * (Bc + R)},
      {"mul", BH * sum(live_i) * Br * (Bc + d + R) + BH * Tr * Br * d},
      {"barriers", 2 * BH * sum(live_i)},
  };
  return claim;
}

}  // namespace flashladder::stage_15
