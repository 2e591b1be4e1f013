// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_80 {

using namespace claims;

namespace {

/// What stage 79 reads of the map.
Expr map_read(Forms<ClosedForm> Claim::*pass) {
  return {"warps map_read", [pass](const Symbols& n) {
            const Forms<ClosedForm>& forms = claim_of(find_stage(79))->*pass;
            return forms.find("global.block_map.read_elements")->value(n);
          }};
}

}  // namespace

// Operations are those of each variant, which stages 75 to 78 claim.
Claim claim() {
  Claim claim = stage_70::claim_with_columns<64, 128, 256>();
  claim.forward.change = claim.backward.change = over_block_maps;
  claim.forward.dropped = {"exp", "exp2", "mul", "div", "fma", "most_exp_before_product"};
  claim.backward.dropped = {"exp", "exp2", "mul", "div", "fma", "blocks"};
  // What the kernel for dsinks adds: a block for each head.
  const Expr of_sinks = has_sinks * Expr("q_heads", [](const Symbols& n) { return n.problem.q_heads; });
  // The scores that have a number in memory.
  const Expr in_memory = of_each_head(has_bias * BH * sum(rows_i * keys_i));
  const auto in_all = [](const Expr& count) { return of_each_head(sum_of_sequences(count)); };
  claim.forward.forms = {{"global.bias.read_elements", in_memory},
                         {"global.block_map.read_elements", map_read(&Claim::forward)}};
  claim.backward.forms = {
      {"global.bias.read_elements", in_memory},
      {"global.dbias.written_elements", bias_numbers},
      {"global.dbias.atomic_elements", in_memory},
      {"global.block_map.read_elements", map_read(&Claim::backward)},
      {"flops_during_copies",
       (8 * num_buffers - 6) * Br * Bc * D * (in_all(BH * sum(live_i)) - sum_of_sequences(seen))},
      {"atomics", in_all(BH * sum(live_i) * Br * D) + in_memory},
      {"global.L.read_elements", (1 + has_sinks) * BH * Nq},
      {"global.D.read_elements", in_all(BH * sum(live_i) * Br) + has_sinks * BH * Nq},
      {"barriers", in_all(2 * BH * sum(live_i) + BHkv * Tc) + of_sinks},
  };
  return claim;
}

}  // namespace flashladder::stage_80
