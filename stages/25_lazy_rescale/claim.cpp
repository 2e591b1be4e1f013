// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_25 {

using namespace claims;

namespace {

// At least so much, since other numbers may need more: each row gets its m in its first tile, and keeps it
// where no later score is larger by a factor of 2^8 after the exponential, as with random numbers. Each
// time that a row does not, it takes R more exponentials and d + R more multiplications.
constexpr bool least = true;

}  // namespace

Claim claim() {
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"exp", BH * Br * (sum(live_i) * Bc + R * live_blocks), least},
      {"exp2", BH * Br * (sum(live_i) * Bc + R * live_blocks), least},
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + (d + R) * live_blocks + Tr * d) + BH * Nq, least},
      {"shuffles", BH * (sum(live_i) + Tr) * Br / 4},
  };
  return claim;
}

}  // namespace flashladder::stage_25
