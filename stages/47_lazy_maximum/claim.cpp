// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_47 {

using namespace claims;

namespace {

// At least so much: of random numbers, too, some ask for the maximum of their row once more. Where all
// scores that a thread has of a row are negative, or masked, it asks.
constexpr bool least = true, random_too = true;

}  // namespace

Claim claim() {
  Claim claim;
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"mul", BH * Br * (sum(live_i) * (Bc + R) + R * live_blocks + Tr * D) + BH * Nq, least, random_too},
      {"shuffles", BH * (live_blocks + 2 * Tr) * Br / 4, least, random_too},
      {"max", BH * Br * (sum(live_i) * (Bc / 2) + (Bc + 2 * R) * live_blocks), least, random_too},
  };
  // That of asking is left out where the largest score is negative.
  claim.forward.dropped = {"fma"};
  return claim;
}

}  // namespace flashladder::stage_47
