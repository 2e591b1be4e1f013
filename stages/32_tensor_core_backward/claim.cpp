// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_32 {

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
      {"global.dQ_sum.written_elements", BH * Nq * d},
      {"global.dQ_sum.atomic_elements", BH * sum(live_i * rows_i) * d},
      {"global.dQ_sum.read_elements", BH * Nq * d},
      {"global.dQ.atomic_elements", 0},
      {"device_bytes", 4 * BH * Nq * (1 + d)},
      {"blocks", BHkv * Tc + 2 * BH * ceil_div(Nq, 4)},
      {"flops_tensor_cores", 10 * Br * Bc * d * BH * sum(live_i)},
      {"flops_cuda_cores", 0},
      {"mul", 2 * BH * sum(live_i) * Br * Bc + 2 * BH * Nq * d + BHkv * Nk * d},
      {"barriers", (1 + share) * BH * sum(live_i)},
      {"shared.P.read_bytes", 4 * (share - 1) * BH * sum(live_i) * Br * Bc},
      {"shared.P.array_bytes", 4 * (share - 1) * Br * Bc},
      {"shared.dS.written_bytes", 2 * BH * sum(live_i) * Br * Bc},
      {"shared.dS.read_bytes", 2 * (2 * BH * sum(live_i) * Br * Bc)},
      {"shared.Q.read_bytes", 2 * (2 * warps / share) * BH * sum(live_i) * Br * d},
      {"shared.dO.read_bytes", 2 * (2 * warps / share) * BH * sum(live_i) * Br * d},
      {"shared.K.read_bytes", 2 * (3 * BH * sum(live_i) * Bc * d)},
      {"shared.V.read_bytes", 2 * BH * sum(live_i) * Bc * d},
  };
  return claim;
}

}  // namespace flashladder::stage_32
