// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_50 {

using namespace claims;

namespace {

constexpr int own_rows = 64;  // of a warpgroup

/// Tiles of keys that some row of a warpgroup sees, for sum_of_warpgroups().
const Expr live_w = {"live_w", &Symbols::live};

// As stages 25 and 47 say of their own.
constexpr bool least = true, random_too = true;

}  // namespace

Claim claim() {
  Claim claim;
  const Expr own_tiles = sum_of_warpgroups(live_w), live_warpgroups = sum_of_warpgroups(min(live_w, 1));
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"flops_tensor_cores", 4 * own_rows * Bc * D * BH * own_tiles},
      {"wgmmas", BH * own_tiles * (D / 16 + Bc / 16)},
      {"wgmma_waits", 256 * BH * own_tiles},
      {"wgmma_read_bytes", 2 * BH * own_tiles * (own_rows + 2 * Bc) * D},
      {"shared.K.read_bytes", 2 * BH * own_tiles * Bc * D},
      {"shared.V.read_bytes", 2 * BH * own_tiles * Bc * D},
      {"exp", own_rows * BH * (own_tiles * Bc + R * live_warpgroups), least},
      {"exp2", own_rows * BH * (own_tiles * Bc + R * live_warpgroups), least},
      {"exp_during_wgmmas", own_rows * Bc * BH * sum_of_warpgroups(max(live_w - 1, 0)), least},
      {"mul", BH * (own_rows * (own_tiles * (Bc + R) + R * live_warpgroups) + Tr * Br * D) + BH * Nq, least,
       random_too},
      {"max", own_rows * BH * (own_tiles * (Bc / 2) + (Bc + 2 * R) * live_warpgroups), least, random_too},
      {"shuffles", BH * (16 * live_warpgroups + Tr * Br / 2 + Tr * Br * D / 64), least, random_too},
      {"named_barriers", BH * scale_is_negative * live_warpgroups},
  };
  // A warpgroup that is done early has other copies beside its last products.
  claim.forward.dropped = {"flops_during_copies", "wgmma_bytes_in_flight"};
  return claim;
}

}  // namespace flashladder::stage_50
