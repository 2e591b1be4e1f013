#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/simt/block.hpp"

namespace flashladder::simt {

/// A float whose operations are counted by kind. Plain floats turn into it silently; it does not turn back,
/// so that no operation escapes. As on the GPU, a new one has no value.
struct f32 {
  f32() = default;
  /// From any number.
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr f32(Number number) : value_(static_cast<float>(number)) {}
  /// Does not compile: a GPU would convert it, and what is done with the number would not be counted.
  template <class Number>
  requires std::is_arithmetic_v<Number>
  explicit operator Number() const {
    static_assert(sizeof(Number) == 0, "an f32 stays an f32: what is done in plain float is not counted");
    return {};
  }

  /// Counted as an addition.
  f32& operator+=(f32 b) {
    ++running.counts.add;
    value_ += b.value_;
    return *this;
  }
  /// Counted as an addition.
  f32& operator-=(f32 b) {
    ++running.counts.add;
    value_ -= b.value_;
    return *this;
  }
  /// Counted as a multiplication.
  f32& operator*=(f32 b) {
    ++running.counts.mul;
    value_ *= b.value_;
    return *this;
  }
  /// Counted as a division.
  f32& operator/=(f32 b) {
    ++running.counts.div;
    value_ /= b.value_;
    return *this;
  }

  /// Counted as an addition.
  friend f32 operator+(f32 a, f32 b) { return a += b; }
  /// Counted as an addition.
  friend f32 operator-(f32 a, f32 b) { return a -= b; }
  /// Counted as a multiplication.
  friend f32 operator*(f32 a, f32 b) { return a *= b; }
  /// Counted as a division.
  friend f32 operator/(f32 a, f32 b) { return a /= b; }
  /// A change of sign is free.
  friend f32 operator-(f32 a) { return -a.value_; }
  /// Comparisons are not counted.
  friend bool operator==(f32 a, f32 b) { return a.value_ == b.value_; }
  /// Comparisons are not counted.
  friend bool operator<(f32 a, f32 b) { return a.value_ < b.value_; }
  /// Comparisons are not counted.
  friend bool operator>(f32 a, f32 b) { return a.value_ > b.value_; }
  /// Comparisons are not counted.
  friend bool operator<=(f32 a, f32 b) { return a.value_ <= b.value_; }
  /// Comparisons are not counted.
  friend bool operator>=(f32 a, f32 b) { return a.value_ >= b.value_; }

 private:
  friend struct Plain;
  float value_;
};
static_assert(sizeof(f32) == 4 && std::is_trivially_copyable_v<f32>);

/// What the emulator's own instructions see of an f32, and tests. Nothing for kernels: nvcc does not know
/// it.
struct Plain {
  /// The number itself; what is done with it is not counted.
  static constexpr float number(f32 x) { return x.value_; }
  /// What accumulators hold until they are waited for: a NaN like no other, which goes on to what is
  /// computed from it.
  static f32 not_there() { return std::bit_cast<float>(no_number); }
  /// Whether a number is that NaN, and nothing was done with it.
  static bool is_untouched(f32 x) { return std::bit_cast<std::uint32_t>(x.value_) == no_number; }
  /// Whether a number is that NaN, or was computed from it.
  static bool is_not_there(f32 x) {
    return (std::bit_cast<std::uint32_t>(x.value_) & ~sign_and_quiet) == no_number;
  }

 private:
  static constexpr std::uint32_t no_number = 0x7fa5a5a5, sign_and_quiet = 0x80400000;
};

/// Reports that accumulators are used that are not there.
[[noreturn, gnu::cold]] void fail_not_there();
/// Fails where a number that is used is not there.
inline void require_there(f32 x) {
  if (Plain::is_not_there(x)) [[unlikely]]
    fail_not_there();
}

/// One step of a matrix product, acc += a * b: 2 FLOPs, counted apart from all other operations.
inline void mac(f32& acc, f32 a, f32 b) {
  running.counts.flops_cuda_cores += 2;
  acc = Plain::number(acc) + Plain::number(a) * Plain::number(b);
}

/// The larger; the other one where one is NaN.
inline f32 fmaxf(f32 a, f32 b) {
  ++running.counts.max;
  require_there(a);
  require_there(b);
  return std::fmax(Plain::number(a), Plain::number(b));
}
/// The smaller; counted as fmaxf.
inline f32 fminf(f32 a, f32 b) {
  ++running.counts.max;
  return std::fmin(Plain::number(a), Plain::number(b));
}
/// a * b + c, rounded once; counted as a multiplication and an addition, and as a fused one.
inline f32 fmaf(f32 a, f32 b, f32 c) {
  ++running.counts.fma;
  ++running.counts.mul;
  ++running.counts.add;
  return std::fma(Plain::number(a), Plain::number(b), Plain::number(c));
}
/// Not counted.
inline f32 fabsf(f32 a) {
  return std::fabs(Plain::number(a));
}
/// Counts an exponential of the running thread.
inline void count_exponential() {
  ++running.counts.exp;
  if (running.thread == nullptr) return;
  ++running.thread->exponentials;
  running.counts.exp_during_wgmmas += running.thread->wgmmas > running.thread->wgmmas_waited;
}
/// e^a.
inline f32 expf(f32 a) {
  count_exponential();
  return std::exp(Plain::number(a));
}
/// 2^a.
inline f32 exp2f(f32 a) {
  count_exponential();
  require_there(a);
  ++running.counts.exp2;
  return std::exp2(Plain::number(a));
}
/// The natural logarithm.
inline f32 logf(f32 a) {
  ++running.counts.log;
  return std::log(Plain::number(a));
}
/// The logarithm to base 2.
inline f32 log2f(f32 a) {
  ++running.counts.log;
  return std::log2(Plain::number(a));
}
/// Whether a is an infinity.
inline bool isinf(f32 a) {
  return std::isinf(Plain::number(a));
}
/// Whether a is no number.
inline bool isnan(f32 a) {
  return std::isnan(Plain::number(a));
}
/// a / b, fast on the GPU; counted as a division.
inline f32 __fdividef(f32 a, f32 b) {
  return a / b;
}

}  // namespace flashladder::simt

// The C library declares functions of its own with these names, which exist for no linker.
#define __expf ::flashladder::simt::expf
#define __logf ::flashladder::simt::logf
#define __log2f ::flashladder::simt::log2f

/// Two f32 that are loaded together.
struct alignas(8) float2 {
  flashladder::simt::f32 x;  ///< Element 0.
  flashladder::simt::f32 y;  ///< Element 1.
};
/// Two f32 as one vector.
inline float2 make_float2(flashladder::simt::f32 x, flashladder::simt::f32 y) {
  return {x, y};
}
/// Four f32 that are loaded and stored together.
struct alignas(16) float4 {
  flashladder::simt::f32 x;  ///< Element 0.
  flashladder::simt::f32 y;  ///< Element 1.
  flashladder::simt::f32 z;  ///< Element 2.
  flashladder::simt::f32 w;  ///< Element 3.
};
/// Four f32 as one vector.
inline float4 make_float4(flashladder::simt::f32 x, flashladder::simt::f32 y, flashladder::simt::f32 z,
                          flashladder::simt::f32 w) {
  return {x, y, z, w};
}
