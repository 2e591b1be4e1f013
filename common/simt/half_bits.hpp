#pragma once
#include <bit>
#include <cstdint>

// What 16-bit numbers mean, for hosts that have no type for them.

namespace flashladder::simt {

/// The fp32 number that 16 bits of bfloat16 stand for.
inline float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
/// `value` as bfloat16, rounded to nearest, ties to even.
inline std::uint16_t round_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // a quiet NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The fp32 number that 16 bits of IEEE half precision stand for.
inline float widen_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu, fraction = bits & 0x3ffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);  // Inf, NaN
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  if (fraction == 0) return std::bit_cast<float>(sign);
  const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction) - 21);  // to the implicit bit
  return std::bit_cast<float>(sign | (113 - shift) << 23 | (fraction << shift & 0x3ffu) << 13);
}
/// As widen_f16, without branches: a loop over many numbers becomes vector instructions. (In a kernel its
/// product would be one that the kernel computes.)
inline float widen_f16_by_product(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  // The exponent's bias is 15 there and 127 here; the product is exact, and right for subnormal numbers
  // too.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t infinite = magnitude >= 0x7c00u ? 0x7f800000u : 0u;  // Inf, or with its fraction NaN
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(finite) | infinite);
}
/// `value` in IEEE half precision, rounded to nearest, ties to even.
inline std::uint16_t round_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);  // NaN
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to more than 65504
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, in integers as all else here
    const std::uint32_t shift = 126 - (magnitude >> 23), fraction = (magnitude & 0x7fffffu) | 0x800000u;
    if (shift > 24) return sign;  // less than half of 2^-24
    const std::uint32_t cut = fraction >> shift, rest = fraction & ((1u << shift) - 1),
                        half = 1u << (shift - 1);
    return static_cast<std::uint16_t>(sign |
                                      (cut + (rest > half || (rest == half && (cut & 1u) != 0) ? 1 : 0)));
  }
  return static_cast<std::uint16_t>(sign |
                                    ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

}  // namespace flashladder::simt
