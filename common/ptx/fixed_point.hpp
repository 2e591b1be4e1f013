#pragma once
// Numbers in fixed point: integers that stand for multiples of a unit. Sums of integers are exact, so their
// order does not matter. (PTX ISA, data movement and conversion instructions, cvt.)
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

/// Stores four integers from p on, as one access of 16 bytes.
__device__ __forceinline__ void store4(int* p, int4 value) {
  *reinterpret_cast<int4*>(p) = value;
}

/// Adds to the two integers from p on, 8 bytes, as one operation: one 64-bit addition, which carries from
/// the first sum into the second one. sums_of_pairs() takes that back.
__device__ __forceinline__ void atomic_add2(int* p, int first, int second) {
  const auto low = static_cast<unsigned>(first),
             high = static_cast<unsigned>(second) + static_cast<unsigned>(first >> 31);
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(high) << 32 | low);
}

}  // namespace for_cuda

#else

inline namespace for_emulator {

/// The integer nearest to x, the even one of two. |x| must be less than 2^31: a GPU gives the nearest one
/// that there is, and 0 for a NaN.
inline int nearest_integer(f32 x) {
  const float number = simt::Plain::number(x);
  if (std::isnan(number)) return 0;
  if (number >= 0x1p31f) return 0x7fffffff;
  if (number < -0x1p31f) return -0x7fffffff - 1;
  return static_cast<int>(std::nearbyint(number));
}

/// Four integers.
struct int4 {
  int x;  ///< The first.
  int y;  ///< The second.
  int z;  ///< The third.
  int w;  ///< The fourth.
};

/// The four integers from p on, as one access of 16 bytes.
inline int4 load4(simt::gmem<const int> p, simt::Where where = simt::Where::here()) {
  return std::bit_cast<int4>(simt::load4(p, where));
}

/// Stores four integers from p on, as one access of 16 bytes.
inline void store4(simt::gmem<int> p, int4 value, simt::Where where = simt::Where::here()) {
  simt::store4(p, std::bit_cast<float4>(value), where);
}

/// Adds to the two integers from p on, 8 bytes, as one operation: one 64-bit addition, which carries from
/// the first sum into the second one. sums_of_pairs() takes that back.
using simt::atomic_add2;

}  // namespace for_emulator

#endif

#if defined(__CUDACC__)
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// The sums of two pairs, to which atomic_add2() has added. The first sum of a pair is what its 32 bits
/// say. If it is negative, the second one is one too small: bits above the sign are part of a negative
/// number.
__device__ __forceinline__ int4 sums_of_pairs(int4 added) {
  return {added.x, added.y - (added.x >> 31), added.z, added.w - (added.z >> 31)};
}

}  // namespace

}  // namespace flashladder
