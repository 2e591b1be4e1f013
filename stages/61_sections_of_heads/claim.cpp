// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>
#include <array>
#include <vector>

#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_61 {

using namespace claims;

namespace {

/// Key/value heads of a section: without the mask blocks have the same work, and their order is nothing.
std::int64_t heads_of_section(const Symbols& n) {
  const std::int64_t bytes = (2 + 2 + 4) * (n.BH / n.BHkv) * n.Nq * n.D;  // of Q, dO and dQ_sum
  for (std::int64_t heads = n.problem.kv_heads; heads > 1; --heads) {
    if (n.problem.kv_heads % heads == 0 && heads * bytes <= L2_bytes() / 4 * 3) return heads;
  }
  return 1;
}

/// The most tiles that a multiprocessor gets, where each takes the next block when it is done: in each
/// section the first key tiles of all its heads come first. A block has the rows that see its keys, of all
/// query heads of the group.
std::int64_t most_tiles(Symbols n) {
  std::vector<std::int64_t> tiles_of_block(n.Tc);  // by key tile
  for (n.i = 0; n.i < n.Tr; ++n.i) {
    for (std::int64_t j = 0; j < n.live(); ++j) tiles_of_block[j] += n.BH / n.BHkv;
  }
  std::array<std::int64_t, multiprocessors()> tiles = {};
  const std::int64_t together = heads_of_section(n);
  for (std::int64_t section = 0; section < n.BHkv / together; ++section) {
    for (const std::int64_t more : tiles_of_block) {
      for (std::int64_t head = 0; head < together; ++head) *std::ranges::min_element(tiles) += more;
    }
  }
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
