// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>
#include <array>
#include <vector>

#include "common/claims/closed_form.hpp"
#include "common/claims/key_tile_order.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_61 {

using namespace claims;

namespace {

/// The most tiles that a multiprocessor gets, where each takes the next block when it is done: in each
/// section the first key tiles of all its heads come first. A block has the rows that see its keys, of all
/// query heads of the group.
std::int64_t most_tiles(Symbols n) {
  std::vector<std::int64_t> tiles_of_block(n.Tc);  // by key tile
  for (n.i = 0; n.i < n.Tr; ++n.i) {
    for (std::int64_t j = 0; j < n.live(); ++j) tiles_of_block[j] += n.BH / n.BHkv;
  }
  std::array<std::int64_t, multiprocessors()> tiles = {};
  for (const std::int64_t j : key_tiles_in_order(n, L2_bytes()))
    *std::ranges::min_element(tiles) += tiles_of_block[j];
  return std::ranges::max(tiles);
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.backward.as_before = true;
  claim.backward.forms = {{"most_tiles_of_multiprocessor",
                           {"most tiles of 16, the first keys of a section first", most_tiles}}};
  return claim;
}

}  // namespace flashladder::stage_61
