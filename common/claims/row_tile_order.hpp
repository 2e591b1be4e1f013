#pragma once
#include <cstdint>
#include <vector>

#include "common/claims/expression.hpp"
#include "common/claims/symbols.hpp"

namespace flashladder::claims {

/// The row tiles of all heads, each by its number i in its head, the longest of a section first: under the
/// mask in sections of as many heads as have K and V of `room` bytes, or of one; without it, head after
/// head.
std::vector<std::int64_t> longest_first(const Symbols& n, std::int64_t room);

/// How often blocks that stay draw a row tile, of so many: behind each row tile, and none where each block
/// has one. "row_tiles if row_tiles > 16, else 0"
Expr drawn(const Expr& row_tiles, std::int64_t multiprocessors);

}  // namespace flashladder::claims
