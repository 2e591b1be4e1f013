// What this stage moves, computes and allocates, in the symbols of the problem and its tile.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_10 {

using namespace claims;

namespace {

/// As in attention.cu; R: a warp has a row of P.
ClaimedTile tile_for(const Problem& p) {
  return {.Br = 64, .Bc = 4096 / p.d, .R = 32};
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 128, .R = 32}, .tile_for = tile_for};
  claim.forward.forms = {
      {"global.Q.read_elements", BH * Tc * Nq * d},
      {"global.K.read_elements", BH * Tr * Nk * d},
      {"global.V.read_elements", BH * Tr * Nk * d},
      {"global.S.read_elements", 3 * BH * Nq * Nk},
      {"global.P.read_elements", BH * Nq * Nk},
      {"global.S.written_elements", BH * Nq * Nk},
      {"global.P.written_elements", BH * Nq * Nk},
      {"global.O.written_elements", BH * Nq * d},
      {"global.L.written_elements", BH * Nq},
      {"device_bytes", 4 * (2 * BH * Nq * Nk)},
      {"blocks", BH * (Tr * Tc + ceil_div(Nq, 8) + Tr)},
      {"tiles", BH * Tr * Tc},
      {"masked_tiles", BH * Tr * if_causal(Tc, Tc - floor_div(Nk, Bc))},
      {"flops_cuda_cores", 4 * Br * Bc * d * BH * Tr * Tc},
      {"exp", 2 * BH * Nq * Nk},
      {"div", R * BH * Nq},
      {"mul", BH * Tr * Tc * Br * Bc + BH * Nq * Nk},
      {"log", BH * Nq},
      {"barriers", 3 * BH * Tr * Tc},
  };
  // P is what the forward pass saved; dS is dP until softmax_backward has made it dS.
  claim.backward.forms = {
      {"global.dO.read_elements", 2 * BH * Tc * Nq * d},
      {"global.Q.read_elements", BH * Tc * Nq * d},
      {"global.K.read_elements", BH * Tr * Nk * d},
      {"global.V.read_elements", BH * Tr * Nk * d},
      {"global.P.read_elements", 3 * BH * Nq * Nk},
      {"global.dS.read_elements", 4 * BH * Nq * Nk},
      {"global.dS.written_elements", 2 * BH * Nq * Nk},
      {"global.dQ.written_elements", BH * Nq * d},
      {"global.dK.written_elements", BHkv * Nk * d},
      {"global.dV.written_elements", BHkv * Nk * d},
      {"device_bytes", 4 * (2 * BH * Nq * Nk)},
      {"blocks", BH * (Tr * Tc + ceil_div(Nq, 8) + Tr) + 2 * BHkv * Tc},
      {"tiles", BH * Tr * Tc},
      {"flops_cuda_cores", 8 * Br * Bc * d * BH * Tr * Tc},
      {"exp", 0},
      {"mul", BH * Tr * Tc * Br * Bc + 3 * BH * Nq * Nk},
      {"barriers", 7 * BH * Tr * Tc},  // 1 of dP, 2 of each of dQ, dK and dV
      {"atomics", 0},
  };
  return claim;
}

}  // namespace flashladder::stage_10
