#pragma once
// vimnmx3: the largest of three integers by one instruction. (CUDA C++ Programming Guide, dynamic
// programming instructions, __vimax3_s32; PTX ISA, integer arithmetic instructions, max.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)
inline namespace for_cuda {
/// The largest of three numbers where at least one has no minus sign; else any of them. The bits of floats
/// are compared as integers: of two floats the larger has the larger bits if one of them has no minus sign.
__device__ __forceinline__ float max3_unless_negative(float a, float b, float c) {
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}
}  // namespace for_cuda
#else
inline namespace for_emulator {
/// The largest of three numbers where at least one has no minus sign; else any of them. The bits of floats
/// are compared as integers: of two floats the larger has the larger bits if one of them has no minus sign.
/// Counted as one maximum.
inline f32 max3_unless_negative(f32 a, f32 b, f32 c) {
  ++simt::running.counts.max;
  for (const f32 x : {a, b, c}) simt::require_there(x);
  const auto bits = [](f32 x) { return std::bit_cast<std::int32_t>(simt::Plain::number(x)); };
  const f32 larger = bits(a) > bits(b) ? a : b;
  return bits(c) > bits(larger) ? c : larger;
}
}  // namespace for_emulator
#endif

}  // namespace flashladder
