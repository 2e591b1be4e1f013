// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_14 {

using namespace claims;

namespace {

/// As in attention.cu.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = 64, .Bc = 4096 / p.d, .R = 16};
}

}  // namespace

Claim claim() {
  // R, threads that hold a row of S and O: exp, div and mul are as before, with this one.
  Claim claim{.tile = {.Br = 64, .Bc = 128, .R = 16}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.dropped = {"shared.m_part.written_elements", "shared.m_part.read_elements",
                           "shared.l_part.written_elements", "shared.O_part.written_elements"};
  claim.forward.forms = {
      {"barriers", 2 * BH * Tr * Tc},
      {"shared.m_part.array_bytes", 0},
      {"shared.l_part.array_bytes", 0},
      {"shared.O_part.array_bytes", 0},
  };
  return claim;
}

}  // namespace flashladder::stage_14
