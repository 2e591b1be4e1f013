#include "common/claims/symbols.hpp"

#include <algorithm>
#include <stdexcept>

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

/// Calls f with each live tile of keys of row tile i.
template <class F>
void Symbols::for_live(F f) const {
  const BlockMap& map = problem.block_map;
  if (map.batch * map.heads > 1) throw std::logic_error("each head has a block map of its own");
  const auto [first, end] = problem.mask().live_tiles(i * Br, rows(), Bc);
  for (std::int64_t tile = first; tile < end; ++tile) {
    if (problem.is_in_live_block(0, i * Br, tile * Bc)) f(tile);
  }
}

std::int64_t Symbols::live() const {
  std::int64_t tiles = 0;
  for_live([&](std::int64_t) { ++tiles; });
  return tiles;
}

std::int64_t Symbols::keys() const {
  std::int64_t keys = 0;
  for_live([&](std::int64_t tile) { keys += std::min(Bc, Nk - tile * Bc); });
  return keys;
}

std::int64_t Symbols::whole() const {
  const Interval<std::int64_t> whole = problem.mask().whole_tiles(i * Br, rows(), Bc);
  std::int64_t tiles = 0;
  for_live([&](std::int64_t tile) { tiles += tile >= whole.first && tile < whole.end ? 1 : 0; });
  return tiles;
}

std::int64_t Symbols::seen(bool keys) const {
  const std::int64_t group = problem.q_heads / problem.kv_heads;
  std::int64_t total = 0;
  for (std::int64_t kv_head = 0; kv_head < BHkv; ++kv_head) {
    for (std::int64_t j0 = 0; j0 < Nk; j0 += Bc) {
      const std::int64_t size = std::min(Bc, Nk - j0);
      const std::int64_t first = problem.mask().rows(j0).first,
                         end = problem.mask().rows(j0 + size - 1).end;
      bool is_seen = false;
      for (std::int64_t row0 = first / Br * Br; row0 < end && first < end; row0 += Br) {
        for (std::int64_t h = 0; h < group; ++h)
          is_seen = is_seen || problem.is_in_live_block(kv_head * group + h, row0, j0);
      }
      if (is_seen) total += keys ? size : 1;
    }
  }
  return total;
}

}  // namespace flashladder
