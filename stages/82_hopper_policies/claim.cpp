// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/row_tile_order.hpp"
#include "common/kernel/host.hpp"
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_82 {

using namespace claims;
using stage_70::launched;

namespace {

/// As in kernel.hpp, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 128>(p.d);
  const int warpgroups = D == 64 && p.dropout.p == 0 ? 4 : 3;
  return {.Br = 64 * warpgroups,
          .Bc = 64,
          .R = 4,
          .D = D,
          .warps = 4 * warpgroups,
          .num_buffers = 4,
          .warpgroups = warpgroups,
          .panels = D / 64};
}

}  // namespace

// That plain attention takes the operations of stage 51 is a test of its own, gpu_claims_test.cpp; those of
// the variants are claimed by stages 75 to 78.
Claim claim() {
  Claim claim{.tile = {.Br = 256, .Bc = 64, .R = 4}, .tile_for = tile_for};
  const Expr all = BH * launched(Nq, Br), blocks = min(multiprocessors(), all);
  const Expr sorted = min(sequences, 1) * launched(Nq, Br);  // of a head; a block sorts 128 of them
  const Expr sorting = ceil_div(sorted, 128);
  const Expr row_tiles = sum_of_sequences(BH * Tr), key_tiles = sum_of_sequences(BH * sum(live_i));
  const Expr brought = sum_of_sequences(BH * sum(keys_i) * d);  // of K, and of V
  claim.forward.as_before = true;
  claim.forward.change = stage_70::sum_up;
  claim.forward.forms = {
      {"blocks", blocks + sorting},
      {"dependent_launches", min(sequences, 1)},
      {"barriers", blocks + 2 * sorting * sorting},
      {"mbarrier_arrivals", row_tiles * (1 + 128 * warpgroups) + key_tiles * (2 + 8 * warpgroups) + blocks},
      {"mbarrier_waits",
       (row_tiles + blocks) * (1 + 128 * warpgroups) + key_tiles * (2 + 256 * warpgroups)},
      {"atomics", drawn(all, multiprocessors())},
      {"device_bytes", 4 + 24 * sorted},
      {"most_registers",
       {"160 for 3 warpgroups, else 112", [](const Symbols& n) { return n.warpgroups == 3 ? 160 : 112; }}},
      {"fewest_registers", 32},
      {"shared_bytes_per_block", 2 * (2 * Br + 2 * num_buffers * Bc) * D + 32 * num_buffers + 128},
      {"global.slopes.read_elements", has_alibi * row_tiles * 128 * warpgroups},
      {"global.bias.read_elements", has_bias * BH * sum_of_warpgroups(rows_i * keys_i)},
      {"global.K.read_elements", brought},
      {"global.V.read_elements", brought},
      {"tma_read_bytes", 2 * (sum_of_sequences(BH * sum(min(live_i, 1) * rows_i)) * d + 2 * brought)},
      {"global.sinks.read_elements", has_sinks * row_tiles * 128 * warpgroups},
  };
  // Of other operations, and of what is beside products, each variant has its own.
  claim.forward.dropped = {"exp",
                           "exp2",
                           "mul",
                           "div",
                           "max",
                           "shuffles",
                           "exp_during_wgmmas",
                           "most_exp_before_product",
                           "flops_during_copies",
                           "wgmma_bytes_in_flight"};
  return claim;
}

}  // namespace flashladder::stage_82
