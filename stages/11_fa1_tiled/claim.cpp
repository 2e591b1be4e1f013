// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_11 {

using namespace claims;

namespace {

/// As in attention.cu; R: threads that hold a row of O.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = 64, .Bc = 4096 / p.d, .R = 4};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 128, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.dropped = {"global.S.read_elements", "global.P.read_elements", "global.S.written_elements",
                           "global.P.written_elements"};
  claim.forward.forms = {
      {"global.K.read_elements", BH * Nk * d},
      {"global.V.read_elements", BH * Nk * d},
      {"global.O.read_elements", BH * (Tc - 1) * Nq * d},
      {"global.m.read_elements", BH * (Tc - 1) * Nq},
      {"global.l.read_elements", BH * (Tc - 1) * Nq},
      {"global.O.written_elements", BH * Tc * Nq * d},
      {"global.m.written_elements", BH * Tc * Nq},
      {"global.l.written_elements", BH * Tc * Nq},
      {"global.L.written_elements", 0},
      {"device_bytes", 4 * (2 * BH * Nq)},
      {"blocks", BH},
      {"exp", BH * Tr * Tc * Br * (Bc + 2 * R)},
      {"div", 2 * BH * Tr * Tc * Br * R},
      {"mul", BH * Tr * Tc * Br * (Bc + 2 * d + 2 * R)},
      {"log", 0},
      {"barriers", BH * Tr * Tc * (3 + max(4, d / 16))},
      {"shared.m_part.written_elements", 4 * BH * Tr * Tc * Br},  // 4 splits of the keys
      {"shared.m_part.read_elements", 4 * BH * Tr * Tc * Br * (4 * R + R)},
      {"shared.l_part.written_elements", 4 * BH * Tr * Tc * Br},
      {"shared.O_part.written_elements", 4 * BH * Tr * Tc * Br * d},
  };
  return claim;
}

}  // namespace flashladder::stage_11
