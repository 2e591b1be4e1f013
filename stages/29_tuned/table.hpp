#pragma once
// The tile of each kernel of stage 29: for an architecture of GPUs, a dtype, a head dimension and with or
// without the causal mask.
#include "common/kernel/tile_table.hpp"

namespace flashladder::tiles_29 {

/// What a block works on.
struct Tile {
  static constexpr bool is_backward = false;  ///< Which pass it is for.

  int Br;           ///< Rows of a tile of Q.
  int Bc;           ///< Keys of a tile of K and of V.
  int warps;        ///< Of a block; each has Br / warps rows.
  int num_buffers;  ///< Buffers of K and of V, 1 or 2: with one they take turns at being copied.
  int unroll;       ///< Of the steps over d of S = Q K^T, that many in a row without a jump.
};

/// A kernel and its tile.
using Row = TileRow<Tile>;

/// Each tile is Br, Bc, warps, num_buffers, unroll. `./ladder tune` writes these lines.
inline constexpr Row table[] = {
    // clang-format off
    {80, Dtype::fp16, 32, false, {128, 128, 4, 1, 2}},
    {80, Dtype::fp16, 32, true, {128, 128, 4, 1, 2}},
    {80, Dtype::fp16, 64, false, {128, 128, 4, 1, 2}},
    {80, Dtype::fp16, 64, true, {128, 64, 4, 1, 2}},
    {80, Dtype::fp16, 96, false, {128, 64, 4, 1, 2}},
    {80, Dtype::fp16, 96, true, {128, 64, 4, 1, 2}},
    {80, Dtype::fp16, 128, false, {128, 64, 4, 1, 2}},
    {80, Dtype::fp16, 128, true, {128, 64, 4, 1, 2}},
    {80, Dtype::fp16, 192, false, {128, 64, 8, 1, 2}},
    {80, Dtype::fp16, 192, true, {128, 64, 8, 1, 2}},
    {80, Dtype::fp16, 256, false, {64, 64, 4, 1, 2}},
    {80, Dtype::fp16, 256, true, {64, 64, 4, 1, 2}},
    {80, Dtype::bf16, 32, false, {128, 128, 4, 1, 2}},
    {80, Dtype::bf16, 32, true, {128, 128, 4, 1, 2}},
    {80, Dtype::bf16, 64, false, {128, 128, 4, 1, 2}},
    {80, Dtype::bf16, 64, true, {128, 64, 4, 1, 2}},
    {80, Dtype::bf16, 96, false, {128, 64, 4, 1, 2}},
    {80, Dtype::bf16, 96, true, {128, 64, 4, 1, 2}},
    {80, Dtype::bf16, 128, false, {128, 64, 4, 1, 2}},
    {80, Dtype::bf16, 128, true, {128, 64, 4, 1, 2}},
    {80, Dtype::bf16, 192, false, {128, 64, 8, 1, 2}},
    {80, Dtype::bf16, 192, true, {128, 64, 8, 1, 2}},
    {80, Dtype::bf16, 256, false, {64, 64, 4, 1, 2}},
    {80, Dtype::bf16, 256, true, {64, 64, 4, 1, 2}},
    {90, Dtype::fp16, 32, false, {128, 64, 4, 2, 8}},
    {90, Dtype::fp16, 32, true, {64, 64, 4, 2, 8}},
    {90, Dtype::fp16, 64, false, {128, 128, 4, 1, 4}},
    {90, Dtype::fp16, 64, true, {128, 128, 4, 2, 8}},
    {90, Dtype::fp16, 96, false, {128, 64, 4, 2, 8}},
    {90, Dtype::fp16, 96, true, {128, 64, 4, 2, 8}},
    {90, Dtype::fp16, 128, false, {128, 64, 4, 1, 2}},
    {90, Dtype::fp16, 128, true, {128, 64, 4, 2, 4}},
    {90, Dtype::fp16, 192, false, {128, 128, 8, 1, 8}},
    {90, Dtype::fp16, 192, true, {128, 128, 8, 1, 8}},
    {90, Dtype::fp16, 256, false, {128, 128, 8, 1, 8}},
    {90, Dtype::fp16, 256, true, {128, 128, 8, 1, 8}},
    {90, Dtype::bf16, 32, false, {128, 64, 4, 2, 8}},
    {90, Dtype::bf16, 32, true, {64, 64, 4, 2, 8}},
    {90, Dtype::bf16, 64, false, {128, 128, 4, 1, 4}},
    {90, Dtype::bf16, 64, true, {128, 128, 4, 2, 8}},
    {90, Dtype::bf16, 96, false, {128, 64, 4, 2, 8}},
    {90, Dtype::bf16, 96, true, {128, 64, 4, 2, 8}},
    {90, Dtype::bf16, 128, false, {128, 64, 4, 1, 2}},
    {90, Dtype::bf16, 128, true, {128, 64, 4, 2, 4}},
    {90, Dtype::bf16, 192, false, {128, 128, 8, 1, 8}},
    {90, Dtype::bf16, 192, true, {128, 128, 8, 1, 8}},
    {90, Dtype::bf16, 256, false, {128, 128, 8, 1, 8}},
    {90, Dtype::bf16, 256, true, {128, 128, 8, 1, 8}},
    {120, Dtype::fp16, 32, false, {128, 128, 4, 1, 2}},
    {120, Dtype::fp16, 32, true, {128, 128, 4, 1, 2}},
    {120, Dtype::fp16, 64, false, {128, 128, 4, 1, 1}},
    {120, Dtype::fp16, 64, true, {128, 64, 4, 1, 2}},
    {120, Dtype::fp16, 96, false, {128, 64, 4, 1, 2}},
    {120, Dtype::fp16, 96, true, {128, 64, 4, 1, 2}},
    {120, Dtype::fp16, 128, false, {128, 64, 4, 1, 2}},
    {120, Dtype::fp16, 128, true, {128, 64, 4, 1, 2}},
    {120, Dtype::fp16, 192, false, {128, 64, 8, 1, 2}},
    {120, Dtype::fp16, 192, true, {128, 64, 8, 1, 2}},
    {120, Dtype::fp16, 256, false, {64, 64, 4, 1, 2}},
    {120, Dtype::fp16, 256, true, {64, 64, 4, 1, 2}},
    {120, Dtype::bf16, 32, false, {128, 128, 4, 1, 2}},
    {120, Dtype::bf16, 32, true, {128, 128, 4, 1, 2}},
    {120, Dtype::bf16, 64, false, {128, 128, 4, 1, 1}},
    {120, Dtype::bf16, 64, true, {128, 64, 4, 1, 2}},
    {120, Dtype::bf16, 96, false, {128, 64, 4, 1, 2}},
    {120, Dtype::bf16, 96, true, {128, 64, 4, 1, 2}},
    {120, Dtype::bf16, 128, false, {128, 64, 4, 1, 2}},
    {120, Dtype::bf16, 128, true, {128, 64, 4, 1, 2}},
    {120, Dtype::bf16, 192, false, {128, 64, 8, 1, 2}},
    {120, Dtype::bf16, 192, true, {128, 64, 8, 1, 2}},
    {120, Dtype::bf16, 256, false, {64, 64, 4, 1, 2}},
    {120, Dtype::bf16, 256, true, {64, 64, 4, 1, 2}},
    // clang-format on
};

}  // namespace flashladder::tiles_29
