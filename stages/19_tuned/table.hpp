#pragma once
// The tile of each kernel of stage 19: for an architecture of GPUs, a dtype, a head dimension and with or
// without the causal mask.
#include <cstdint>

#include "common/attention/dtype.hpp"

namespace flashladder::tiles_19 {

/// What a block works on.
struct Tile {
  int Br;      ///< Rows of a tile of Q.
  int Bc;      ///< Keys of a tile of K and of V.
  int warps;   ///< Of a block; each has Br / warps rows.
  int stages;  ///< Buffers of K and of V: that many tiles of each are there or on their way.
};

/// A kernel and its tile.
struct Row {
  int architecture;  ///< 80: compute capability 8.0. It serves all newer ones up to the table's next.
  Dtype dtype;       ///< Of Q, K, V and O.
  int d;             ///< It serves head dimensions up to this one, from the table's next smaller on.
  bool causal;       ///< With the mask or without.
  Tile tile;         ///< Br, Bc, warps, stages.
};

/// `./ladder tune` writes these lines.
inline constexpr Row table[] = {
    // clang-format off
    {80, Dtype::fp16, 32, false, {128, 128, 4, 1}},
    {80, Dtype::fp16, 32, true, {128, 128, 4, 1}},
    {80, Dtype::fp16, 64, false, {128, 128, 4, 1}},
    {80, Dtype::fp16, 64, true, {128, 128, 4, 1}},
    {80, Dtype::fp16, 96, false, {128, 64, 4, 1}},
    {80, Dtype::fp16, 96, true, {128, 64, 4, 1}},
    {80, Dtype::fp16, 128, false, {128, 64, 4, 1}},
    {80, Dtype::fp16, 128, true, {128, 64, 4, 1}},
    {80, Dtype::fp16, 192, false, {128, 64, 8, 1}},
    {80, Dtype::fp16, 192, true, {128, 64, 8, 1}},
    {80, Dtype::fp16, 256, false, {64, 64, 4, 1}},
    {80, Dtype::fp16, 256, true, {64, 64, 4, 1}},
    {80, Dtype::bf16, 32, false, {128, 128, 4, 1}},
    {80, Dtype::bf16, 32, true, {128, 128, 4, 1}},
    {80, Dtype::bf16, 64, false, {128, 128, 4, 1}},
    {80, Dtype::bf16, 64, true, {128, 128, 4, 1}},
    {80, Dtype::bf16, 96, false, {128, 64, 4, 1}},
    {80, Dtype::bf16, 96, true, {128, 64, 4, 1}},
    {80, Dtype::bf16, 128, false, {128, 64, 4, 1}},
    {80, Dtype::bf16, 128, true, {128, 64, 4, 1}},
    {80, Dtype::bf16, 192, false, {128, 64, 8, 1}},
    {80, Dtype::bf16, 192, true, {128, 64, 8, 1}},
    {80, Dtype::bf16, 256, false, {64, 64, 4, 1}},
    {80, Dtype::bf16, 256, true, {64, 64, 4, 1}},
    {90, Dtype::fp16, 32, false, {128, 128, 4, 1}},
    {90, Dtype::fp16, 32, true, {128, 128, 4, 1}},
    {90, Dtype::fp16, 64, false, {128, 128, 4, 1}},
    {90, Dtype::fp16, 64, true, {128, 128, 4, 1}},
    {90, Dtype::fp16, 96, false, {128, 64, 4, 1}},
    {90, Dtype::fp16, 96, true, {128, 64, 4, 1}},
    {90, Dtype::fp16, 128, false, {128, 64, 4, 1}},
    {90, Dtype::fp16, 128, true, {128, 64, 4, 1}},
    {90, Dtype::fp16, 192, false, {128, 64, 8, 1}},
    {90, Dtype::fp16, 192, true, {128, 64, 8, 1}},
    {90, Dtype::fp16, 256, false, {128, 128, 8, 1}},
    {90, Dtype::fp16, 256, true, {128, 128, 8, 1}},
    {90, Dtype::bf16, 32, false, {128, 128, 4, 1}},
    {90, Dtype::bf16, 32, true, {128, 128, 4, 1}},
    {90, Dtype::bf16, 64, false, {128, 128, 4, 1}},
    {90, Dtype::bf16, 64, true, {128, 128, 4, 1}},
    {90, Dtype::bf16, 96, false, {128, 64, 4, 1}},
    {90, Dtype::bf16, 96, true, {128, 64, 4, 1}},
    {90, Dtype::bf16, 128, false, {128, 64, 4, 1}},
    {90, Dtype::bf16, 128, true, {128, 64, 4, 1}},
    {90, Dtype::bf16, 192, false, {128, 64, 8, 1}},
    {90, Dtype::bf16, 192, true, {128, 64, 8, 1}},
    {90, Dtype::bf16, 256, false, {128, 128, 8, 1}},
    {90, Dtype::bf16, 256, true, {128, 128, 8, 1}},
    // clang-format on
};

/// The row for a GPU of `architecture` and head dimension d, at most 256: the newest architecture that is
/// not newer than the GPU, the table's oldest where all are, and the smallest head dimension that is not
/// smaller than d.
constexpr const Row& row_for(int architecture, Dtype dtype, std::int64_t d, bool causal) {
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

}  // namespace flashladder::tiles_19
