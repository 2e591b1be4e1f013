#include "common/attention/dtype.hpp"

#include <cstring>
#include <string>

#include "common/error.hpp"
#include "common/simt/half_bits.hpp"

namespace flashladder {

std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return "fp32";
    case Dtype::fp16:
      return "fp16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::int32:
      return "int32";
  }
  return "?";
}

Dtype parse_dtype(std::string_view name) {
  for (Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    if (name == to_string(dtype)) return dtype;
  }
  throw UsageError("unknown dtype '" + std::string(name) + "': use fp32, fp16 or bf16");
}

float round_to(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::fp32:
    case Dtype::int32:
      return value;
    case Dtype::fp16:
      return simt::widen_f16(simt::round_f16(value));
    case Dtype::bf16:
      return simt::widen_bf16(simt::round_bf16(value));
  }
  return value;
}

std::int64_t size_of(Dtype dtype) {
  return dtype == Dtype::fp32 || dtype == Dtype::int32 ? 4 : 2;
}

void store_as(Dtype dtype, float value, void* to) {
  if (dtype == Dtype::int32) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(to, &whole, sizeof whole);
    return;
  }
  const std::uint16_t bits = dtype == Dtype::fp16 ? simt::round_f16(value) : simt::round_bf16(value);
  std::memcpy(to, dtype == Dtype::fp32 ? static_cast<const void*>(&value) : &bits,
              static_cast<std::size_t>(size_of(dtype)));
}

float load_as(Dtype dtype, const void* from) {
  if (dtype == Dtype::int32) {
    std::int32_t whole;
    std::memcpy(&whole, from, sizeof whole);
    return static_cast<float>(whole);
  }
  float value;
  std::uint16_t bits;
  std::memcpy(dtype == Dtype::fp32 ? static_cast<void*>(&value) : &bits, from,
              static_cast<std::size_t>(size_of(dtype)));
  if (dtype == Dtype::fp32) return value;
  return dtype == Dtype::fp16 ? simt::widen_f16(bits) : simt::widen_bf16(bits);
}

double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return 0x1p-24;
    case Dtype::fp16:
      return 0x1p-11;
    case Dtype::bf16:
      return 0x1p-8;
    case Dtype::int32:
      return 0;
  }
  return 0;
}

}  // namespace flashladder
