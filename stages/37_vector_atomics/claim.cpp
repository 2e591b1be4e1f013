// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_37 {

using namespace claims;

namespace {

/// Up to 32 keys a warp; from d = 96 on two warps share them.
ClaimedTile tile_for(const Problem& p) {
  const bool large = p.d > 128;
  return {.Br = 32,
          .Bc = p.d <= 64 ? 128
                : large   ? 32
                          : 64,
          .warps = 4,
          .share = p.d <= 64 ? 1 : 2,
          .num_buffers = large ? 1 : 2};
}

/// Lanes that compute D of a row.
const Expr lanes("lanes", [](const Symbols& n) { return n.d % 64 == 0 ? 8 : 4; });

}  // namespace

Claim claim() {
  const Expr fragments = ceil_div(Nq, 16);  // of 16 rows
  Claim claim{.tile = {.Br = 32, .Bc = 128}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"global.dQ_sum.written_elements", BH * Tr * Br * d},
      {"global.dQ_sum.atomic_elements", BH * sum(live_i) * Br * d},
      {"global.dQ_sum.read_elements", 16 * BH * fragments * d},
      {"device_bytes", 4 * BH * (2 * Nq + Tr * Br * d)},
      {"blocks", BHkv * Tc + BH * (Tr * Br * lanes / 128 + ceil_div(fragments * d, 128))},
      {"mul",
       2 * BH * sum(live_i) * Br * Bc + BH * (Nq * (1 + d) + 16 * fragments * d) + BHkv * Tc * Bc * d},
      {"atomics", BH * sum(live_i) * Br * d},
  };
  return claim;
}

}  // namespace flashladder::stage_37
