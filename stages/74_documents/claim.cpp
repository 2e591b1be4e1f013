// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_74 {

using namespace claims;
using stage_70::launched;

namespace {

constexpr bool least = true, random_too = true;  // a maximum comes late: see stage 72

}  // namespace

Claim claim() {
  Claim claim = stage_70::claim_with_columns<64, 128>();
  claim.forward.change = claim.backward.change = stage_70::sum_up;
  claim.forward.forms = {
      {"device_bytes", 0},
      {"blocks", BH * launched(Nq, Br)},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * D},
      {"most_exp_before_product", min(sum_of_sequences(sum(live_i)), 1) * Br * (16 + R) / (32 * warps),
       least, random_too},
  };
  const Expr lanes("lanes", [](const Symbols& n) { return n.D % 64 == 0 ? 8 : 4; });
  const Expr rows = named("padded_Nq", launched(Nq, Br) * Br);  // of whole tiles
  claim.backward.forms = {
      {"global.L2.written_elements", BH * rows},
      {"global.D.written_elements", BH * rows},
      {"global.dQ_sum.written_elements", BH * rows * D},
      {"device_bytes", 4 * BH * rows * (2 + D)},
      {"blocks", BHkv * launched(Nk, Bc) + BH * (rows * lanes / 128 + ceil_div(rows / 16 * D, 128))},
  };
  return claim;
}

}  // namespace flashladder::stage_74
