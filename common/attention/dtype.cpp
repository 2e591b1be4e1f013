#include "common/attention/dtype.hpp"

#include <bit>
#include <cmath>
#include <string>

#include "common/attention/error.hpp"

namespace flashladder {

std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return "fp32";
    case Dtype::fp16:
      return "fp16";
    case Dtype::bf16:
      return "bf16";
  }
  return "?";
}

Dtype parse_dtype(std::string_view name) {
  for (Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    if (name == to_string(dtype)) return dtype;
  }
  throw UsageError("unknown dtype '" + std::string(name) + "': use fp32, fp16 or bf16");
}

namespace {

float round_to_bf16(float value) {
  if (std::isnan(value)) return value;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t last_kept = (bits >> 16) & 1u;  // 1 when the kept part is odd: a tie then rounds up
  bits += 0x7fffu + last_kept;
  return std::bit_cast<float>(bits & 0xffff0000u);
}

float round_to_fp16(float value) {
  if (std::isnan(value) || std::isinf(value) || value == 0.0f) return value;
  // An fp16 number is k * 2^e with |k| < 2^11; below 2^-14 the exponent stays at -24 (subnormal numbers).
  const int exponent = std::max(std::ilogb(value), -14) - 10;
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
  return std::abs(rounded) > 65504.0f ? std::copysign(INFINITY, value) : rounded;
}

}  // namespace

float round_to(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::fp32:
      return value;
    case Dtype::fp16:
      return round_to_fp16(value);
    case Dtype::bf16:
      return round_to_bf16(value);
  }
  return value;
}

double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return 0x1p-24;
    case Dtype::fp16:
      return 0x1p-11;
    case Dtype::bf16:
      return 0x1p-8;
  }
  return 0;
}

}  // namespace flashladder
