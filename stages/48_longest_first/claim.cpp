// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>
#include <array>

#include "common/claims/closed_form.hpp"
#include "common/claims/row_tile_order.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_48 {

using namespace claims;

namespace {

/// The most tiles that a multiprocessor gets, where each takes the next row tile when it is done.
std::int64_t most_tiles(Symbols n) {
  std::array<std::int64_t, multiprocessors()> tiles = {};
  for (const std::int64_t i : longest_first(n, L2_bytes() / 3)) {
    n.i = i;
    *std::ranges::min_element(tiles) += n.live();
  }
  return std::ranges::max(tiles);
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"most_tiles_of_multiprocessor", {"most live_i of 16, the longest of a section first", most_tiles}}};
  return claim;
}

}  // namespace flashladder::stage_48
