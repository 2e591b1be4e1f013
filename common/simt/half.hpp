#pragma once
#include <cstdint>

#include "common/simt/half_bits.hpp"
#include "common/simt/scalar.hpp"

// 16-bit numbers. They are stored and handed to tensor cores; arithmetic is done in f32.

namespace flashladder::simt {

/// A bfloat16 number. Conversions are not counted.
struct bf16 {
  std::uint16_t bits;  ///< As on the GPU.

  bf16() = default;
  /// Rounded to nearest.
  explicit bf16(f32 x) : bits(round_bf16(Plain::number(x))) { require_there(x); }
  /// Exact.
  explicit operator f32() const { return widen_bf16(bits); }
};

/// An IEEE half-precision number. Conversions are not counted.
struct f16 {
  std::uint16_t bits;  ///< As on the GPU.

  f16() = default;
  /// Rounded to nearest.
  explicit f16(f32 x) : bits(round_f16(Plain::number(x))) { require_there(x); }
  /// Exact.
  explicit operator f32() const { return widen_f16(bits); }
};

}  // namespace flashladder::simt
