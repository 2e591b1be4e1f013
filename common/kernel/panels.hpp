#pragma once
// Tiles as TMA writes them and wgmma reads them.
#include "common/kernel/device.hpp"
#include "common/kernel/swizzle.hpp"
#include "common/ptx/wgmma.hpp"

namespace flashladder {

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// A tile [rows, d] of 16-bit numbers in panels of 64 columns, or of 32 where d is no multiple of 64 (or
/// where it is said): the first panel of all rows, then the second, and so on. Rows of a panel, 128 or 64
/// bytes, are swizzled. As an array it is [rows * panels, columns].
template <int rows_, int d, int columns_ = d % 64 == 0 ? 64 : 32>
struct Panels {
  static constexpr int rows = rows_;                    ///< Of the tile.
  static constexpr int columns = columns_;              ///< Of a panel.
  static constexpr int panels = d / columns;            ///< Of a tile.
  static constexpr int row_bytes = 2 * columns;         ///< Of a row of a panel: the swizzle.
  static constexpr int panel_bytes = rows * row_bytes;  ///< Of a panel.
  static constexpr int bytes = panels * panel_bytes;    ///< Of a tile.

  /// The row of the array that has columns c ... c + 7 of row r.
  __device__ __forceinline__ static int row(int r, int c) { return c / columns * rows + r; }
  /// The column there.
  __device__ __forceinline__ static int column(int r, int c) { return Swizzle<columns>()(r, c % columns); }
  /// Bytes from the start of the tile to columns k ... k + 15, the A or B of a product over columns.
  __device__ __forceinline__ static constexpr int at_column(int k) {
    return k / columns * panel_bytes + 2 * (k % columns);
  }
  /// Bytes from the start of the tile to rows k ... k + 15, the B of a product over rows.
  __device__ __forceinline__ static constexpr int at_row(int k) { return k * row_bytes; }
};

/// As load_tile_async, of a tile in panels, to panels from row `to` of the array on.
template <class Tile, int threads, class T, int all>
__device__ __forceinline__ void load_panels_async(
    smem_tile<T, all, Tile::columns>& tile, int to,
    gmem<const std::type_identity_t<T>> matrix,  // [N, columns]
    std::int64_t stride, int row0, int N, int columns) {
#pragma unroll
  for (int p = 0; p < Tile::panels; ++p) {
    load_tile_async<Tile::rows, Tile::columns, threads>(
        tile, to + p * Tile::rows, matrix + p * Tile::columns, stride, row0, N, Swizzle<Tile::columns>(),
        columns - p * Tile::columns);
  }
}

}  // namespace for_emulator
}  // namespace flashladder
