// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_56 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 128, 192, 256>(p.d);
  const int columns = D / 2 % 64 == 0 ? 64 : 32;  // of a panel
  return {.Br = 64,
          .Bc = 64,
          .D = D,
          .warps = 8,
          .share = 2,
          .num_buffers = 2,
          .step = 64,
          .warpgroups = 2,
          .panels = D / columns};
}

/// Bytes of Q and L2, or of dO and D, of the first two tiles of all blocks.
const Expr first("first", [](const Symbols& n) { return bytes_of_tile(n, 0); });
const Expr second("second", [](const Symbols& n) { return bytes_of_tile(n, 1); });

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 64}, .tile_for = tile_for};
  const Expr fragments = ceil_div(Nq, 16);  // of 16 rows
  // Beside a product of a tile Q, L2, dO and D of the next one are in flight. Beside S its own dO and D
  // are, too, and beside dP its own Q and L2. The first warpgroup releases Q behind S: beside its other
  // products Q and L2 of the next tile but one are, too, which get that buffer.
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * BH * sum(live_i) * Br);
  claim.backward.as_before = true;
  claim.backward.forms = {
      // 2 BHkv Tc Bc D: of dK, and of dV, by 1
      {"mul",
       2 * BH * sum(live_i) * Br * Bc + BH * (Nq * (1 + d) + 16 * fragments * D) + 2 * BHkv * Tc * Bc * D},
      {"wgmmas", BH * sum(live_i) * warpgroups * ((D + Br + Bc) / 16)},
      {"wgmma_waits", 2 * 128 * warpgroups * BH * sum(live_i)},
      {"wgmma_read_bytes", 2 * BH * sum(live_i) * (3 * Bc * D + 4 * Br * D + warpgroups * Br * Bc)},
      {"wgmma_bytes_in_flight", warps * ((D + Br + Bc) / 8 * (all - first) + D / 16 * all) +
                                    4 * ((Br + Bc) / 16 * (all - first - second))},
      {"flops_during_copies", Br * Bc * D * (10 * BH * sum(live_i) - 6 * BHkv * Tc)},
      {"exp_during_wgmmas", 0},
      {"named_barriers", 5 * BH * sum(live_i) + BHkv * Tc},
      {"shared_bytes_per_block", 4 * (Bc + num_buffers * Br) * D + 2 * num_buffers * Br * Bc + 4 * Br * Bc +
                                     8 * num_buffers * (Br + 4) + 16},
      {"shared.P.written_bytes", 4 * BH * sum(live_i) * Br * Bc},
      {"shared.P.read_bytes", 4 * BH * sum(live_i) * Br * Bc},
      {"shared.dS.read_bytes", 2 * (warpgroups * BH * sum(live_i) * Br * Bc)},
      {"shared.Q.read_bytes", 2 * (2 * BH * sum(live_i) * Br * D)},
      {"shared.dO.read_bytes", 2 * (2 * BH * sum(live_i) * Br * D)},
      // BHkv Tc: dK and dV are written through what was K and V
      {"shared.K.read_bytes", 2 * (2 * BH * sum(live_i) + BHkv * Tc) * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_56
