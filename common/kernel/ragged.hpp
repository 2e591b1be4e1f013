#pragma once
// Where TMA finds the rows of sequences that are packed, by the map of TensorShape::ragged.
#include "common/kernel/device.hpp"

namespace flashladder {

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// Coordinates of a row: its own, and that of the batch entry.
struct Place {
  int row;    ///< Of a head's rows.
  int entry;  ///< Of the batch.
};

/// Where row `row` of a sequence of N rows is that begins at row0 of `all`: rows from N on are zeros. Where
/// sequences are packed the map is that of make_ragged_tensor_map; else it is row `row` of batch entry b.
__device__ __forceinline__ Place place_of(bool packed, int b, int row, int row0, int N, int all) {
  return packed ? Place{all - N + row, row0 + N} : Place{row, b};
}

}  // namespace for_emulator
}  // namespace flashladder
