#include "common/claims/key_tile_order.hpp"

namespace flashladder::claims {

namespace {

/// Key/value heads of a section.
std::int64_t heads_of_section(const Symbols& n, std::int64_t L2_bytes) {
  const std::int64_t bytes = (2 + 2 + 4) * (n.BH / n.BHkv) * n.Nq * n.D;  // of Q, dO and dQ_sum of one
  for (std::int64_t heads = n.problem.kv_heads; heads > 1; --heads) {
    if (n.problem.kv_heads % heads == 0 && heads * bytes <= L2_bytes / 4 * 3) return heads;
  }
  return 1;
}

}  // namespace

std::vector<std::int64_t> key_tiles_in_order(const Symbols& n, std::int64_t L2_bytes) {
  const std::int64_t together = n.problem.causal ? heads_of_section(n, L2_bytes) : 1;
  std::vector<std::int64_t> order;
  for (std::int64_t section = 0; section < n.BHkv / together; ++section) {
    for (std::int64_t j = 0; j < n.Tc; ++j) order.insert(order.end(), together, j);
  }
  return order;
}

}  // namespace flashladder::claims
