// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_64 {

using namespace claims;

Claim claim() {
  Claim claim;
  const Expr fragments = ceil_div(Nq, 16);     // of 16 rows
  const Expr parts = ceil_div(Nk, 128);        // of 128 keys, whose largest numbers are found together
  const Expr rows = BH * Tr * Br;              // each with a unit of its own
  const Expr keys = BHkv * (128 * parts) * D;  // numbers of K, and of V, that are looked at: whole parts
  const Expr looked_at = keys + keys / 8;      // and of V sums of 8 numbers
  const Expr dQ = BH * sum(live_i) * Br * D;   // numbers that become integers
  const Expr by_fma = dQ / 2;                  // the first one of each pair
  claim.same_sums = true;
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"global.K.read_elements", BHkv * Nk * d + keys},
      {"global.V.read_elements", BHkv * Nk * d + keys},
      {"global.L.read_elements", 2 * BH * Nq},
      {"global.largest.written_elements", 2 * BHkv * parts},
      {"global.largest.read_elements", rows / 2 * parts},
      {"global.units.written_elements", rows},
      {"global.units.read_elements",
       256 * warpgroups * (BH * sum(live_i) + BHkv * Tc) + 2 * BH * fragments * D},
      {"device_bytes", 4 * rows * (3 + D) + 8 * BHkv * parts},
      {"blocks", BHkv * (Tc + ceil_div(parts, 4)) + BH * (Tr * Br / 16 + ceil_div(fragments * D, 128))},
      {"div", rows + 2 * BH * fragments * D},
      {"fma", BH * sum(live_i) * Br * Bc + 2 * by_fma + looked_at},
      {"mul", 2 * BH * sum(live_i) * Br * Bc + dQ + by_fma + looked_at + 25 * rows +
                  BH * (Nq * (2 + d) + 16 * fragments * D) + BHkv * Tc * Bc * D},
      {"atomics", BH * sum(live_i) * Br * D / 2},  // two integers each
      {"dependent_launches", 3},
  };
  return claim;
}

}  // namespace flashladder::stage_64
