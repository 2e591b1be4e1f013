// What this stage moves, computes and allocates, in the symbols of the problem and its tile.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_30 {

using namespace claims;

Claim claim() {
  Claim claim{.tile = {.Br = 32, .Bc = 32}};
  claim.backward.forms = {
      {"global.Q.read_elements", BH * Tc * Nq * d},
      {"global.K.read_elements", BHkv * Nk * d},
      {"global.V.read_elements", BHkv * Nk * d},
      {"global.O.read_elements", BH * Tc * Nq * d},
      {"global.dO.read_elements", BH * Tc * Nq * d},
      {"global.m.read_elements", BH * Tc * Nq},
      {"global.l.read_elements", BH * Tc * Nq},
      {"global.dQ.read_elements", BH * (Tc - 1) * Nq * d},
      {"global.dQ.written_elements", BH * Tc * Nq * d},
      {"global.dK.written_elements", BHkv * Nk * d},
      {"global.dV.written_elements", BHkv * Nk * d},
      {"device_bytes", 4 * (2 * BH * Nq)},
      {"blocks", BHkv},
      {"tiles", BH * Tr * Tc},
      {"masked_tiles", BH * Tr * if_causal(Tc, Tc - floor_div(Nk, Bc))},
      {"flops_cuda_cores", 10 * Br * Bc * d * BH * Tr * Tc},
      {"exp", BH * Tr * Tc * Br * Bc},
      {"div", BH * Tc * Nq},
      {"mul", 4 * BH * Tr * Tc * Br * Bc + BH * Tc * Nq * d},
      {"barriers", 3 * BH * Tr * Tc},
      {"atomics", 0},
  };
  return claim;
}

}  // namespace flashladder::stage_30
