#pragma once
// In which order a backward pass takes the tiles of keys.
#include <cstdint>
#include <vector>

#include "common/claims/symbols.hpp"

namespace flashladder::claims {

/// The tiles of keys of all heads, each by its number j in its head, in the order in which blocks take
/// them: without the mask head after head; under it the first ones of all heads of a section come first. A
/// section has as many heads as possible: their number divides that of a batch entry, and their Q, dO and
/// dQ_sum take at most three quarters of `L2_bytes`. It has one where no more fit.
std::vector<std::int64_t> key_tiles_in_order(const Symbols& n, std::int64_t L2_bytes);

}  // namespace flashladder::claims
