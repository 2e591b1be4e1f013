// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_36 {

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
  Claim claim{.tile = {.Br = 32, .Bc = 128}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"global.L.read_elements", BH * Nq},
      {"global.L2.written_elements", BH * Nq},
      {"global.L2.read_elements", BH * sum(live_i * rows_i)},
      {"device_bytes", 4 * BH * Nq * (2 + d)},
      {"blocks", BHkv * Tc + BH * (ceil_div(Nq * lanes, 128) + ceil_div(Nq, 4))},
      {"mul", 2 * BH * sum(live_i) * Br * Bc + BH * Nq * (1 + 2 * d) + BHkv * Tc * Bc * d},
      {"exp2", BH * sum(live_i) * Br * Bc},
      {"fma", BH * sum(live_i) * Br * Bc},
  };
  return claim;
}

}  // namespace flashladder::stage_36
