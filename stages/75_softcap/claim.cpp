// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/attention/stage.hpp"
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_75 {

using namespace claims;

namespace {

/// As stage 71; the forward pass has the tile of stage 70.
ClaimedTile backward_tile_for(const Problem& p) {
  return claim_of(find_stage(71))->symbols(p);
}

constexpr bool least = true;  // other numbers may need more, as in stage 70

}  // namespace

Claim claim() {
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  const Expr scores = sum(live_i) * Br * Bc;     // of a head, computed
  Claim claim{.backward_tile_for = backward_tile_for};
  claim.forward.as_before = claim.backward.as_before = true;
  claim.forward.forms = {
      {"exp", BH * (Br * (sum(live_i) * Bc + R * live_blocks) + has_softcap * scores), least},
      {"exp2", BH * (Br * (sum(live_i) * Bc + R * live_blocks) + has_softcap * scores), least},
      {"mul",
       BH * (Br * (sum(live_i) * (Bc + R) + (D + R) * live_blocks + Tr * D) + 3 * has_softcap * scores) +
           BH * Nq,
       least},
      {"div", BH * (Tr * Br * R + has_softcap * scores)},
      {"most_exp_before_product", min(sum(live_i), 1) * Br * (has_softcap * Bc + 16 + R) / (32 * warps)},
  };
  claim.backward.forms = {
      {"exp", BH * (1 + has_softcap) * scores},
      {"exp2", BH * (1 + has_softcap) * scores},
      {"div", BH * has_softcap * scores},
      {"fma", (1 + has_softcap) * BH * scores},
      {"mul", (2 + 6 * has_softcap) * BH * scores + BH * (Nq * (1 + d) + 16 * ceil_div(Nq, 16) * D) +
                  BHkv * Tc * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_75
