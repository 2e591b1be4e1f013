#pragma once
#include "common/simt/simt.hpp"

namespace flashladder {

/// Column blocks into which the warps of a block divide dQ of a tile, [Br, d]: of the numbers that give
/// each warp whole fragments, 16 rows by 16 columns, the one with the fewest reads of dS and K; 0 where
/// none does.
__host__ __device__ constexpr int column_blocks(int Br, int d, int warps) {
  int best = 0;
  for (int blocks = 1; blocks <= warps; blocks *= 2) {
    if (d % (16 * blocks) != 0 || Br * blocks % (16 * warps) != 0) continue;
    if (best == 0 || blocks * Br + warps / blocks * d < best * Br + warps / best * d) best = blocks;
  }
  return best;
}

}  // namespace flashladder
