#pragma once
// The tile of each kernel of stage 51: for a head dimension. One kernel serves both dtypes, and rows with
// and without the causal mask.
#include <cstdint>

namespace flashladder::tiles_51 {

/// What a block works on, and what its threads have for it.
struct Tile {
  int warpgroups;          ///< That multiply; each has 64 rows.
  int Bc;                  ///< Keys of a tile of K and of V.
  int num_buffers;         ///< Of K, and of V.
  int Q_buffers;           ///< Of Q.
  int registers;           ///< Of a thread that multiplies.
  int producer_registers;  ///< Of a thread of the producer's warpgroup.
};

/// The kernel for a head dimension, and its tile.
struct Row {
  int d;      ///< Head dimension, and those below it down to the table's next.
  Tile tile;  ///< What a block works on.
};

/// Each tile is warpgroups, Bc, num_buffers, Q_buffers, registers, producer_registers. `./ladder tune`
/// writes these lines.
inline constexpr Row table[] = {
    // clang-format off
    {64, {4, 64, 4, 2, 112, 32}},
    {96, {3, 112, 3, 2, 160, 32}},
    {128, {3, 64, 4, 2, 160, 32}},
    {192, {2, 112, 2, 1, 240, 24}},
    {256, {2, 80, 2, 1, 240, 24}},
    // clang-format on
};

/// The row for head dimension d, at most the table's last: the first that is not below it.
constexpr const Row& row_for(std::int64_t d) {
  const Row* row = table;
  while (row->d < d) ++row;
  return *row;
}

}  // namespace flashladder::tiles_51
