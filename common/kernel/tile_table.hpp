#pragma once
#include <cstdint>

#include "common/attention/dtype.hpp"

namespace flashladder {

/// A kernel of a tuned stage and its tile.
template <class Tile>
struct TileRow {
  int architecture;  ///< 80: compute capability 8.0. It serves all newer ones up to the table's next.
  Dtype dtype;       ///< Of Q, K, V and O.
  int d;             ///< Head dimension, and those below it down to the table's next.
  bool causal;       ///< With the mask or without.
  Tile tile;         ///< What a block works on.
};

/// The row for a GPU of `architecture` and head dimension d: the newest architecture that is not newer than
/// the GPU, the table's oldest where all are, and the smallest head dimension that is not smaller than d.
/// The table has one for each dtype and mask.
template <class Row, int rows>
constexpr const Row& row_for(const Row (&table)[rows], int architecture, Dtype dtype, std::int64_t d,
                             bool causal) {
  const Row* best = nullptr;
  for (const Row& row : table) {
    if (row.dtype != dtype || row.causal != causal || row.d < d) continue;
    const bool fits = row.architecture <= architecture;
    const bool better = best == nullptr || (row.architecture > best->architecture && fits) ||
                        (row.architecture == best->architecture && row.d < best->d);
    if (better) best = &row;
  }
  return *best;
}

}  // namespace flashladder
