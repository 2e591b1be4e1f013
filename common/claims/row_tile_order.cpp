#include "common/claims/row_tile_order.hpp"

#include <algorithm>

namespace flashladder::claims {

std::vector<std::int64_t> longest_first(Symbols n, std::int64_t room) {
  std::int64_t heads = 1;  // of a section
  if (n.problem.causal) {
    const std::int64_t most = std::max<std::int64_t>(room / (4 * n.Nk * n.D), 1);
    const std::int64_t sections = (n.BHkv + most - 1) / most;
    heads = (n.BHkv + sections - 1) / sections * (n.BH / n.BHkv);
  }
  std::vector<std::int64_t> live;
  for (std::int64_t first = 0; first < n.BH; first += heads) {
    for (n.i = n.Tr - 1; n.i >= 0; --n.i) live.insert(live.end(), std::min(heads, n.BH - first), n.live());
  }
  return live;
}

}  // namespace flashladder::claims
