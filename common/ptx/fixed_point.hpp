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

/// The 32 bits of x.
__device__ __forceinline__ unsigned bits_of(float x) {
  return __float_as_uint(x);
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
/// the first sum into the second one. `first` has `excess` too much, so that it is not negative.
/// sums_of_pairs() takes both back.
__device__ __forceinline__ void atomic_add2(int* p, unsigned first, int second) {
  const auto high = static_cast<unsigned>(second);
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(high) << 32 | first);
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

/// The 32 bits of x.
inline unsigned bits_of(f32 x) {
  return std::bit_cast<unsigned>(simt::Plain::number(x));
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
/// the first sum into the second one. `first` has `excess` too much, so that it is not negative.
/// sums_of_pairs() takes both back.
using simt::atomic_add2;

}  // namespace for_emulator

#endif

#if defined(__CUDACC__)
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// What the first integer of a pair has too much.
constexpr unsigned excess = 1u << 31;

/// The integer nearest to x * units, and `excess`, by the units that multiply and add: those that convert
/// are fewer, and are those of exponentials, too. |x * units| must be less than 2^31.
///
/// Neighbouring floats from 2^34 to 2^35 differ by 2048. So `high`, which is about 1.5 * 2^34, and x *
/// units are rounded to a multiple of 2048, and the last bits of the sum have that multiple. Those from
/// 2^23 to 2^24 differ by 1, so that `low` and what is left of x * units are rounded to a whole number.
/// 2048 times the bits of the one, and the bits of the other, are the integer, modulo 2^32: `high` has the
/// excess in it, and is less by the bits of `low`. Nothing else is rounded.
__device__ __forceinline__ unsigned excess_integer(f32 x, f32 units) {
  constexpr unsigned bits_of_low = 0x4b400000;
  constexpr float low = 0x1.8p23f, high = 0x1.8p34f + (excess - bits_of_low);
  const f32 multiple = fmaf(x, units, high);
  const f32 rest = fmaf(x, units, (high + low) - multiple);
  return 2048u * bits_of(multiple) + bits_of(rest);
}

/// The sums of two pairs, to which atomic_add2() has added so many times. The first sum of a pair is what
/// its 32 bits have without the excess. All that came to it is the sum and the excess: what of that has not
/// had a place in 32 bits was carried.
__device__ __forceinline__ int4 sums_of_pairs(int4 added, int times) {
  const std::int64_t all_excess = std::int64_t{times} * excess;
  const auto first = [&](int x) { return static_cast<int>(static_cast<unsigned>(x - all_excess)); };
  const auto carried = [&](int sum) { return static_cast<int>((all_excess + sum) >> 32); };
  const int x = first(added.x), z = first(added.z);
  return {x, added.y - carried(x), z, added.w - carried(z)};
}

}  // namespace

}  // namespace flashladder
