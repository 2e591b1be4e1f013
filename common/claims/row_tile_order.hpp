#pragma once
#include <cstdint>
#include <vector>

#include "common/claims/symbols.hpp"

namespace flashladder::claims {

/// The row tiles of all heads, each by its number i in its head, the longest of a section first: under the
/// mask in sections of as many heads as have K and V of `room` bytes, or of one; without it, head after
/// head.
std::vector<std::int64_t> longest_first(const Symbols& n, std::int64_t room);

}  // namespace flashladder::claims
