#pragma once
// The tile of each kernel of stage 38: for an architecture of GPUs, a dtype, a head dimension and with or
// without the causal mask.
#include "common/kernel/tile_table.hpp"

namespace flashladder::tiles_38 {

/// What a block works on.
struct Tile {
  static constexpr bool is_backward = true;  ///< Which pass it is for.

  int Br;           ///< Rows of a tile of Q and of dO.
  int Bc;           ///< Keys of a tile of K and V.
  int warps;        ///< Of a block.
  int num_buffers;  ///< Buffers of Q and of dO: 1, or 2 so that the next tile comes while this one is used.
  int share;   ///< Warps that share their keys: 1, or 2, of which one has S, P and dV, the other dP, dS and
               ///< dK.
  int step;    ///< Rows of which a warp has S at a time.
  int unroll;  ///< Of the steps over d of S and dP, and over keys of dQ, that many in a row without a
               ///< jump.
};

/// A kernel and its tile.
using Row = TileRow<Tile>;

/// Each tile is Br, Bc, warps, num_buffers, share, step, unroll. `./ladder tune` writes these lines.
inline constexpr Row table[] = {
    // clang-format off
    {80, Dtype::fp16, 32, false, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::fp16, 32, true, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::fp16, 64, false, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::fp16, 64, true, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::fp16, 96, false, {64, 64, 4, 1, 2, 32, 6}},
    {80, Dtype::fp16, 96, true, {64, 64, 4, 1, 2, 32, 6}},
    {80, Dtype::fp16, 128, false, {64, 64, 4, 1, 2, 32, 2}},
    {80, Dtype::fp16, 128, true, {64, 64, 4, 1, 2, 32, 2}},
    {80, Dtype::fp16, 256, false, {32, 32, 4, 1, 2, 32, 16}},
    {80, Dtype::fp16, 256, true, {32, 32, 4, 1, 2, 32, 16}},
    {80, Dtype::bf16, 32, false, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::bf16, 32, true, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::bf16, 64, false, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::bf16, 64, true, {64, 128, 4, 2, 1, 32, 2}},
    {80, Dtype::bf16, 96, false, {64, 64, 4, 1, 2, 32, 6}},
    {80, Dtype::bf16, 96, true, {64, 64, 4, 1, 2, 32, 6}},
    {80, Dtype::bf16, 128, false, {64, 64, 4, 1, 2, 32, 2}},
    {80, Dtype::bf16, 128, true, {64, 64, 4, 1, 2, 32, 2}},
    {80, Dtype::bf16, 256, false, {32, 32, 4, 1, 2, 32, 16}},
    {80, Dtype::bf16, 256, true, {32, 32, 4, 1, 2, 32, 16}},
    {90, Dtype::fp16, 32, false, {32, 128, 4, 2, 1, 32, 4}},
    {90, Dtype::fp16, 32, true, {64, 128, 4, 2, 1, 32, 8}},
    {90, Dtype::fp16, 64, false, {64, 128, 4, 2, 1, 32, 4}},
    {90, Dtype::fp16, 64, true, {64, 128, 4, 2, 1, 32, 4}},
    {90, Dtype::fp16, 96, false, {64, 64, 4, 2, 1, 64, 8}},
    {90, Dtype::fp16, 96, true, {64, 128, 8, 1, 1, 64, 8}},
    {90, Dtype::fp16, 128, false, {64, 128, 8, 1, 2, 64, 8}},
    {90, Dtype::fp16, 128, true, {64, 128, 8, 1, 2, 64, 8}},
    {90, Dtype::fp16, 256, false, {64, 64, 8, 1, 2, 64, 1}},
    {90, Dtype::fp16, 256, true, {64, 64, 8, 1, 2, 64, 8}},
    {90, Dtype::bf16, 32, false, {32, 128, 4, 2, 1, 32, 4}},
    {90, Dtype::bf16, 32, true, {64, 128, 4, 2, 1, 32, 8}},
    {90, Dtype::bf16, 64, false, {64, 128, 4, 2, 1, 32, 4}},
    {90, Dtype::bf16, 64, true, {64, 128, 4, 2, 1, 32, 4}},
    {90, Dtype::bf16, 96, false, {64, 64, 4, 2, 1, 64, 8}},
    {90, Dtype::bf16, 96, true, {64, 128, 8, 1, 1, 64, 8}},
    {90, Dtype::bf16, 128, false, {64, 128, 8, 1, 2, 64, 8}},
    {90, Dtype::bf16, 128, true, {64, 128, 8, 1, 2, 64, 8}},
    {90, Dtype::bf16, 256, false, {64, 64, 8, 1, 2, 64, 1}},
    {90, Dtype::bf16, 256, true, {64, 64, 8, 1, 2, 64, 8}},
    {120, Dtype::fp16, 32, false, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::fp16, 32, true, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::fp16, 64, false, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::fp16, 64, true, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::fp16, 96, false, {64, 64, 4, 1, 2, 32, 6}},
    {120, Dtype::fp16, 96, true, {64, 64, 4, 1, 2, 32, 6}},
    {120, Dtype::fp16, 128, false, {64, 64, 4, 1, 2, 32, 4}},
    {120, Dtype::fp16, 128, true, {64, 64, 4, 1, 2, 32, 4}},
    {120, Dtype::fp16, 256, false, {32, 32, 4, 1, 2, 32, 16}},
    {120, Dtype::fp16, 256, true, {32, 32, 4, 1, 2, 32, 16}},
    {120, Dtype::bf16, 32, false, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::bf16, 32, true, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::bf16, 64, false, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::bf16, 64, true, {64, 128, 4, 2, 1, 32, 2}},
    {120, Dtype::bf16, 96, false, {64, 64, 4, 1, 2, 32, 6}},
    {120, Dtype::bf16, 96, true, {64, 64, 4, 1, 2, 32, 6}},
    {120, Dtype::bf16, 128, false, {64, 64, 4, 1, 2, 32, 4}},
    {120, Dtype::bf16, 128, true, {64, 64, 4, 1, 2, 32, 4}},
    {120, Dtype::bf16, 256, false, {32, 32, 4, 1, 2, 32, 16}},
    {120, Dtype::bf16, 256, true, {32, 32, 4, 1, 2, 32, 16}},
    // clang-format on
};

}  // namespace flashladder::tiles_38
