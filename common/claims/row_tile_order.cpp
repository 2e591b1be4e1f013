#include "common/claims/row_tile_order.hpp"

#include <algorithm>

namespace flashladder::claims {

std::vector<std::int64_t> longest_first(const Symbols& n, std::int64_t room) {
  std::int64_t heads = 1;  // of a section
  if (n.problem.causal) {
    const std::int64_t most = std::max<std::int64_t>(room / (4 * n.Nk * n.D), 1);
    const std::int64_t fewest = (n.BHkv + most - 1) / most;
    std::int64_t alike = fewest;
    while (n.BHkv % alike > 0) ++alike;
    const std::int64_t sections = alike <= 2 * fewest ? alike : fewest;
    heads = (n.BHkv + sections - 1) / sections * (n.BH / n.BHkv);
  }
  std::vector<std::int64_t> tiles;
  for (std::int64_t first = 0; first < n.BH; first += heads) {
    for (std::int64_t k = 0; k < n.Tr; ++k) {
      const std::int64_t i = n.problem.causal ? n.Tr - 1 - k : k;
      tiles.insert(tiles.end(), std::min(heads, n.BH - first), i);
    }
  }
  return tiles;
}

Expr drawn(const Expr& row_tiles, std::int64_t multiprocessors) {
  const auto value = [=](const Symbols& n) {
    const std::int64_t all = row_tiles.value(n);
    return all > multiprocessors ? all : 0;
  };
  const std::string text = row_tiles.text();
  return {text + " if " + text + " > " + std::to_string(multiprocessors) + ", else 0", value,
          Expr::Bond::choice};
}

}  // namespace flashladder::claims
