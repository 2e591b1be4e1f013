// What this stage moves, computes and allocates: what changed since the stage before. Of row tile i, live_i
// is the number of tiles of keys that some row sees, whole_i that of those which every row sees in full,
// and rows_i the number of rows: Br, but in the last tile.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_31 {

using namespace claims;

Claim claim() {
  Claim claim{.tile = {.Br = 32, .Bc = 32}};
  claim.backward.as_before = true;
  claim.backward.dropped = {"global.m.read_elements", "global.l.read_elements"};
  claim.backward.forms = {
      {"global.Q.read_elements", BH * sum(live_i * rows_i) * d},
      {"global.O.read_elements", BH * Nq * d},
      {"global.dO.read_elements", BH * (sum(live_i * rows_i) + Nq) * d},
      {"global.L.read_elements", BH * sum(live_i * rows_i)},
      {"global.D.read_elements", BH * sum(live_i * rows_i)},
      {"global.D.written_elements", BH * Nq},
      {"global.dQ.read_elements", 0},
      {"global.dQ.written_elements", BH * Nq * d},
      {"global.dQ.atomic_elements", BH * sum(live_i * rows_i) * d},
      {"device_bytes", 4 * BH * Nq},
      {"blocks", BHkv * Tc + BH * ceil_div(Nq, 4)},
      {"tiles", BH * sum(live_i)},
      {"masked_tiles", BH * sum(live_i - whole_i)},
      {"flops_cuda_cores", 10 * Br * Bc * d * BH * sum(live_i)},
      {"exp", BH * sum(live_i) * Br * Bc},
      {"div", 0},
      {"mul", 3 * BH * sum(live_i) * Br * Bc + BH * Nq * d},
      {"barriers", 3 * BH * sum(live_i)},
      {"atomics", BH * sum(live_i * rows_i) * d},
  };
  return claim;
}

}  // namespace flashladder::stage_31
