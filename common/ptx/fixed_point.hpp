#pragma once
// Numbers in fixed point: integers that stand for multiples of a unit. Sums of integers are exact, so their
// order does not matter. (PTX ISA, data movement and conversion instructions, cvt.)
#include <bit>
#include <climits>
#include <cmath>

#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// The integer nearest to x, the even one of two. |x| must be less than 2^31.
__device__ __forceinline__ int nearest_integer(float x) {
  return __float2int_rn(x);
}

/// The four integers from p on, as one access of 16 bytes.
__device__ __forceinline__ int4 load4(const int* p) {
  return *reinterpret_cast<const int4*>(p);
}

}  // namespace for_cuda

#else

inline namespace for_emulator {

/// The integer nearest to x, the even one of two. |x| must be less than 2^31: a GPU gives the nearest one
/// that there is, and 0 for a NaN.
inline int nearest_integer(f32 x) {
  const float number = simt::Plain::number(x);
  if (std::isnan(number)) return 0;
  if (number >= 0x1p31f) return INT_MAX;
  if (number < -0x1p31f) return INT_MIN;
  return static_cast<int>(std::nearbyint(number));
}

/// Four integers.
struct int4 {
  int x, y, z, w;
};

/// The four integers from p on, as one access of 16 bytes.
inline int4 load4(simt::gmem<const int> p, simt::Where where = simt::Where::here()) {
  return std::bit_cast<int4>(simt::load4(p, where));
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
