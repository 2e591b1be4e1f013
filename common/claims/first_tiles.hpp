#pragma once
// What the blocks of a backward pass bring first: closed forms of bytes in flight need it.
#include <algorithm>

#include "common/claims/symbols.hpp"

namespace flashladder::claims {

/// The first of a head's tiles of rows that sees key j.
inline std::int64_t first_row_tile(const Symbols& n, std::int64_t j) {
  return n.problem.causal ? std::max<std::int64_t>(j + n.Nq - n.Nk, 0) / n.Br : 0;
}

/// Bytes of Q and L2, or of dO and D, of the tile of this number, 0 or 1, of all blocks: a block has a tile
/// of keys, and takes the tiles of rows that see it, of all query heads of the group one after the other.
/// Q and dO are of 16 bits, L2 and D have whole tiles.
inline std::int64_t bytes_of_tile(const Symbols& n, std::int64_t number) {
  std::int64_t bytes = 0;
  for (std::int64_t j = 0; j < n.Nk; j += n.Bc) {
    const std::int64_t first = first_row_tile(n, j);
    const std::int64_t of_head = n.Tr - first;  // tiles of a query head that the block takes
    if (number >= of_head * (n.BH / n.BHkv)) continue;
    const std::int64_t i = first + number % of_head;
    bytes += 2 * std::min(n.Br, n.Nq - i * n.Br) * n.d + 4 * n.Br;
  }
  return n.BHkv * bytes;
}

/// Blocks that have more than one tile.
inline std::int64_t blocks_of_several_tiles(const Symbols& n) {
  std::int64_t blocks = 0;
  for (std::int64_t j = 0; j < n.Nk; j += n.Bc)
    blocks += (n.Tr - first_row_tile(n, j)) * (n.BH / n.BHkv) > 1;
  return n.BHkv * blocks;
}

}  // namespace flashladder::claims
