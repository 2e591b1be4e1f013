// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_77 {

using namespace claims;

namespace {

constexpr bool least = true, random_too = true;  // a maximum comes late: see stage 72

}  // namespace

Claim claim() {
  Claim claim = stage_70::claim_with_columns<64, 128>();
  // Those with a row that sees a key, whose first maximum is taken for m: with a sink it may be none.
  const Expr first_maxima = (1 - has_sinks) * sum(min(live_i, 1));
  const Expr exponentials = BH * Br * (sum(live_i) * Bc + R * first_maxima);
  claim.forward.forms = {
      {"global.sinks.read_elements", has_sinks * BH * Tr * 32 * warps},
      {"exp", exponentials, least, random_too},
      {"exp2", exponentials, least, random_too},
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + (D + R) * first_maxima + Tr * D + Tr * R / 2) + BH * Nq,
       least, random_too},
      {"most_exp_before_product", min(sum(live_i), 1) * Br * (16 + (1 - has_sinks) * R) / (32 * warps),
       least, random_too},
  };
  // What the kernel for dsinks adds: a block of 256 threads for each head.
  const Expr heads("q_heads", [](const Symbols& n) { return n.problem.q_heads; });
  const Expr scores = sum(live_i) * Br * Bc, fragments = ceil_div(Nq, 16);  // fragments of 16 rows
  claim.backward.forms = {
      {"global.sinks.read_elements", has_sinks * 256 * heads},
      {"global.dsinks.written_elements", has_sinks * heads},
      {"global.L.read_elements", (1 + has_sinks) * BH * Nq},
      {"global.D.read_elements", BH * (sum(live_i) * Br + has_sinks * Nq)},
      {"blocks", BHkv * Tc + BH * (Tr * Br / 16 + ceil_div(fragments * D, 128)) + has_sinks * heads},
      {"barriers", 2 * BH * sum(live_i) + BHkv * Tc + has_sinks * heads},
      {"exp", BH * (scores + has_sinks * Nq)},
      {"mul", BH * (2 * scores + Nq * (1 + d) + 16 * fragments * D + has_sinks * Nq) + BHkv * Tc * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_77
