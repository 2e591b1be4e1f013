#pragma once
#include <cstdint>
#include <initializer_list>

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

/// Whether a GPU of `architecture` runs machine code for `code`: one of the same major version that is not
/// older.
constexpr bool runs_code_for(int code, int architecture) {
  return architecture / 10 == code / 10 && architecture >= code;
}

/// Whether row_for chooses `row`, one of `table`, on any GPU that runs machine code for one of `codes`.
template <class Row, int rows>
constexpr bool is_chosen_on_any(const Row (&table)[rows], const Row& row,
                                std::initializer_list<int> codes) {
  for (const int code : codes) {
    for (int gpu = code; runs_code_for(code, gpu); ++gpu) {
      if (&row_for(table, gpu, row.dtype, row.d, row.causal) == &row) return true;
    }
  }
  return false;
}

}  // namespace flashladder
