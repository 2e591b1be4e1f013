// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_83 {

using namespace claims;
using stage_70::launched;

// That plain attention takes the operations of stage 61 is a test of its own, gpu_claims_test.cpp; those of
// the variants are claimed by stages 75 to 78.
Claim claim() {
  Claim claim;
  const Expr tiles = sum_of_sequences(BH * sum(live_i)), key_tiles = sum_of_sequences(BHkv * Tc);
  const Expr seen_tiles = sum_of_sequences(seen);                 // of keys, that a row sees
  const Expr keys = sum_of_sequences(seen_keys) * d;              // of K, and of V: what is brought
  const Expr rows = sum_of_sequences(BH * sum(live_i * rows_i));  // of Q, and of dO, likewise
  const Expr padded = BH * launched(Nq, Br) * Br;                 // rows of whole tiles
  const Expr heads("q_heads", [](const Symbols& n) { return n.problem.q_heads; });
  const Expr in_memory = has_bias * BH * sum(rows_i * keys_i);  // numbers of all heads
  claim.backward.as_before = true;
  claim.backward.change = stage_70::sum_up;
  claim.backward.forms = {
      {"tma_loads", tiles * (2 * panels + 2) + seen_tiles * 2 * panels},
      {"tma_read_bytes", 4 * rows * d + 8 * tiles * Br + 4 * keys},
      {"copying_threads", seen_tiles},
      {"mbarrier_arrivals", seen_tiles + tiles * (2 + 16 * warpgroups)},
      {"mbarrier_waits", 128 * warpgroups * seen_tiles + tiles * (2 + 512 * warpgroups)},
      {"barriers", key_tiles + has_sinks * heads},
      {"global.K.read_elements", keys},
      {"global.V.read_elements", keys},
      {"global.L2.written_elements", padded},
      {"global.D.written_elements", padded},
      {"global.dQ_sum.written_elements", padded * D},
      {"most_registers", 240},  // of a block, however many sequences there are
      {"fewest_registers", 24},
      {"shared_bytes_per_block",
       4 * (Bc + num_buffers * Br) * D + 2 * num_buffers * Br * Bc + 8 * num_buffers * (Br + 6) + 16},
      {"device_bytes", 4 * padded * (2 + D)},
      {"global.L.read_elements", (1 + has_sinks) * BH * Nq},
      {"global.D.read_elements", tiles * Br + has_sinks * BH * Nq},
      {"global.sinks.read_elements", has_sinks * 256 * heads},
      {"global.dsinks.written_elements", has_sinks * heads},
      {"global.slopes.read_elements", has_alibi * tiles * 128 * warpgroups},
      {"global.bias.read_elements", in_memory},
      {"global.dbias.written_elements", bias_numbers},
      {"global.dbias.atomic_elements", in_memory},
      {"atomics", tiles * Br * D + in_memory},
  };
  // Of other operations, and of what is beside products, each variant has its own.
  claim.backward.dropped = {"exp",
                            "exp2",
                            "mul",
                            "div",
                            "fma",
                            "blocks",
                            "wgmma_bytes_in_flight",
                            "flops_during_copies",
                            "exp_during_wgmmas",
                            "unordered_wgmmas",
                            "most_tiles_of_multiprocessor"};
  return claim;
}

}  // namespace flashladder::stage_83
