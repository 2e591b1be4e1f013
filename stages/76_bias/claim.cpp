// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_76 {

using namespace claims;

namespace {

constexpr bool least = true, random_too = true;  // a maximum comes late: see stage 72

}  // namespace

Claim claim() {
  Claim claim = stage_70::claim_with_columns<64, 128>();
  const Expr live_blocks = sum(min(live_i, 1));                 // those with a row that sees a key
  const Expr scores = sum(live_i) * Br * Bc;                    // of a head, computed
  const Expr in_memory = has_bias * BH * sum(rows_i * keys_i);  // of all heads, those that have a number
  claim.forward.forms = {
      {"global.slopes.read_elements", has_alibi * BH * Tr * 32 * warps},
      {"global.bias.read_elements", in_memory},
      {"fma", 2 * BH * scores},
      {"mul",
       BH * (Br * (sum(live_i) * (Bc + R) + (D + R) * live_blocks + Tr * D) + (2 + has_bias) * scores) +
           BH * Nq,
       least, random_too},
  };
  const Expr lanes("lanes", [](const Symbols& n) { return n.D % 64 == 0 ? 8 : 4; });
  claim.backward.forms = {
      {"global.slopes.read_elements", has_alibi * BH * sum(live_i) * 32 * warps},
      {"global.bias.read_elements", in_memory},
      {"global.dbias.written_elements", bias_numbers},
      {"global.dbias.atomic_elements", in_memory},
      {"fma", 3 * BH * scores},
      {"mul",
       (6 + has_bias) * BH * scores + BH * (Nq * (1 + d) + 16 * ceil_div(Nq, 16) * D) + BHkv * Tc * Bc * D},
      {"blocks", BHkv * Tc + BH * (Tr * Br * lanes / 128 + ceil_div(ceil_div(Nq, 16) * D, 128)) +
                     ceil_div(bias_numbers, 1024)},
      {"atomics", BH * sum(live_i) * Br * D + in_memory},
  };
  return claim;
}

}  // namespace flashladder::stage_76
