#include "common/claims/symbols.hpp"

#include <algorithm>

namespace flashladder {

Symbols::Symbols(const Problem& p, const ClaimedTile& tile)
    : ClaimedTile(tile),
      problem(p),
      BH(p.batch * p.q_heads),
      BHkv(p.batch * p.kv_heads),
      Nq(p.Nq),
      Nk(p.Nk),
      d(p.d),
      Tr((p.Nq + tile.Br - 1) / tile.Br),
      Tc((p.Nk + tile.Bc - 1) / tile.Bc) {
  if (D == 0) D = d;
}

std::int64_t Symbols::rows() const {
  return std::min(Br, Nq - i * Br);
}

std::int64_t Symbols::visible() const {
  const Mask mask = problem.mask();
  return mask.keys(i * Br + rows() - 1).end - mask.keys(i * Br).first;
}

std::int64_t Symbols::live() const {
  return problem.mask().live_tiles(i * Br, rows(), Bc).size();
}

std::int64_t Symbols::keys() const {
  const auto [first, end] = problem.mask().live_tiles(i * Br, rows(), Bc);
  return end > first ? std::min(end * Bc, Nk) - first * Bc : 0;
}

std::int64_t Symbols::whole() const {
  return problem.mask().whole_tiles(i * Br, rows(), Bc).size();
}

}  // namespace flashladder
