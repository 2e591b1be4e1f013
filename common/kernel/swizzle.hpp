#pragma once
// What stage 21 teaches, for the stages after it: tiles whose fragments lie in different banks.
#include "common/simt/simt.hpp"

namespace flashladder {

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// Where columns c ... c + 7 of row r lie in their row. A row of 64 numbers, 128 bytes, fills all banks,
/// and so do two of 32.
template <int d>
struct Swizzle {
  static_assert(d % 32 == 0);
  /// The column in row r at which column c of the row lies.
  __device__ __forceinline__ int operator()(int r, int c) const {
    return d % 64 == 0 ? c ^ (r % 8 * 8) : c ^ (r / 2 % 4 * 8);
  }
};

}  // namespace for_emulator
}  // namespace flashladder
