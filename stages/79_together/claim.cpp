// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_79 {

using namespace claims;

// Operations are those of each variant, which stages 75 to 78 claim.
Claim claim() {
  Claim claim;
  claim.forward.as_before = claim.backward.as_before = true;
  claim.forward.dropped = {"exp", "exp2", "mul", "div", "fma", "most_exp_before_product"};
  claim.backward.dropped = {"exp", "exp2", "mul", "div", "fma", "blocks"};
  // What the kernel for dsinks adds: a block for each head.
  const Expr of_sinks = has_sinks * Expr("q_heads", [](const Symbols& n) { return n.problem.q_heads; });
  const Expr in_memory = has_bias * BH * sum(rows_i * keys_i);  // the scores that have a number there
  claim.forward.forms = {{"global.bias.read_elements", in_memory}};
  claim.backward.forms = {
      {"global.bias.read_elements", in_memory},
      {"global.dbias.written_elements", bias_numbers},
      {"global.dbias.atomic_elements", in_memory},
      {"atomics", sum_of_sequences(BH * sum(live_i) * Br * D) + in_memory},
      {"global.L.read_elements", (1 + has_sinks) * BH * Nq},
      {"global.D.read_elements", sum_of_sequences(BH * sum(live_i) * Br) + has_sinks * BH * Nq},
      {"barriers", sum_of_sequences(2 * BH * sum(live_i) + BHkv * Tc) + of_sinks},
  };
  return claim;
}

}  // namespace flashladder::stage_79
