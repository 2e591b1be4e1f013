// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_33 {

using namespace claims;

namespace {

/// Two warps share 16 keys where the registers of one do not hold dK and dV of its keys.
ClaimedTile tile_for(const Problem& p) {
  const std::int64_t share_of_d = p.d <= 128 ? 1 : 2;
  return {.Br = 32, .Bc = 16 * 4 / share_of_d, .warps = 4, .share = share_of_d};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 32, .Bc = 64}, .tile_for = tile_for};
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"mul", 2 * BH * sum(live_i) * Br * Bc + 2 * BH * Nq * d + BHkv * Tc * Bc * d},
      {"barriers", (1 + share) * BH * sum(live_i) + BHkv * Tc},
      // BHkv Tc: dK and dV are written through what was K and V
      {"shared.K.read_bytes", 2 * (3 * BH * sum(live_i) + BHkv * Tc) * Bc * d},
      {"shared.V.read_bytes", 2 * (BH * sum(live_i) + BHkv * Tc) * Bc * d},
  };
  return claim;
}

}  // namespace flashladder::stage_33
