// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_45 {

using namespace claims;

namespace {

// As stage 28 says of its own.
constexpr bool least = true;

}  // namespace

Claim claim() {
  Claim claim;
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  // Beside S of the first tile its V and the next K and V are in flight. Beside S of another tile its V,
  // the next K and, for the first warpgroup, V of the tile before; the others know that it has come, since
  // the first has waited for it. Beside P~ V of a tile it is the next V and the K behind it.
  const Expr keys = min(live_i * Bc, Nk), next = max(keys - Bc, 0), behind_it = max(keys - 2 * Bc, 0);
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"exp_during_wgmmas", BH * Br * Bc * sum(max(live_i - 1, 0)), least},
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + R * live_blocks + Tr * D) + BH * Nq, least},
      {"wgmma_bytes_in_flight",
       2 * BH *
           (warps * sum(D / 16 * (keys + 2 * next - behind_it) + Bc / 16 * (next + behind_it)) +
            4 * D / 16 * sum(max(live_i - 1, 0) * Bc)) *
           d},
  };
  return claim;
}

}  // namespace flashladder::stage_45
