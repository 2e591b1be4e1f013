// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_12 {

using namespace claims;

namespace {

/// As in attention.cu.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = 64, .Bc = 4096 / p.d, .R = 4};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 128, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"global.m.written_elements", BH * (Tc - 1) * Nq},
      {"global.l.written_elements", BH * (Tc - 1) * Nq},
      {"global.L.written_elements", BH * Nq},
      {"exp", BH * Tr * Tc * Br * (Bc + R)},
      {"div", BH * Tr * Br * R},
      {"mul", BH * Tr * Tc * Br * (Bc + d + R) + BH * Tr * Br * d},
      {"log", BH * Nq},
  };
  return claim;
}

}  // namespace flashladder::stage_12
