// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_40 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 96, 128, 192, 256>(p.d);
  return {.Br = 128,
          .Bc = 64,
          .R = 4,
          .D = D,
          .warps = 8,
          .num_buffers = 2,
          .warpgroups = 2,
          .panels = D == 96 ? 3 : D / 64};
}

// As stage 28 says of its own.
constexpr bool least = true;

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 128, .Bc = 64, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"wgmmas", BH * sum(live_i) * warpgroups * (D / 16 + Bc / 16)},
      {"wgmma_waits", 256 * BH * sum(live_i) * warpgroups},
      {"wgmma_read_bytes", 2 * BH * sum(live_i) * (Br + 2 * warpgroups * Bc) * D},
      {"wgmma_bytes_in_flight",
       4 * BH * warps * (D / 16 + Bc / 16) * sum(max(min(live_i * Bc, Nk) - Bc, 0)) * d},
      {"exp_during_wgmmas", 0},
      {"flops_during_copies", 4 * Br * Bc * D * BH * sum(max(live_i - 1, 0))},
      {"copying_threads", 32 * warps * BH * Tr},
      {"barriers", BH * sum(live_i + 1 + scale_is_negative)},
      {"shuffles", BH * (sum(live_i) + 2 * Tr) * Br / 4},
      {"most_exp_before_product", min(sum(live_i), 1) * (Bc / 2 + 2), least},
      {"shared.K.read_bytes", 2 * warpgroups * BH * sum(live_i) * Bc * D},
      {"shared.V.read_bytes", 2 * warpgroups * BH * sum(live_i) * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_40
