// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_78 {

using namespace claims;

namespace {

constexpr bool least = true, random_too = true;  // a maximum comes late: see stage 72

}  // namespace

Claim claim() {
  Claim claim = stage_70::claim_with_columns<64, 128>();
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  const Expr scores = sum(live_i) * Br * Bc;     // of a head, computed
  claim.forward.forms = {
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + (D + R) * live_blocks + Tr * (D + R)) + BH * Nq, least,
       random_too},
  };
  claim.backward.forms = {
      {"fma", 2 * BH * scores},
      {"mul", BH * (3 * scores + Nq * (1 + d) + 16 * ceil_div(Nq, 16) * D) + 2 * BHkv * Tc * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_78
