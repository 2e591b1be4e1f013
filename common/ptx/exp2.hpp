#pragma once
// ex2.approx: 2^x by one instruction of the special function unit. (PTX ISA, floating-point instructions,
// ex2.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)
inline namespace for_cuda {
/// 2^x, within 2 ulp; 0 where the result is subnormal.
__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace for_cuda
#else
inline namespace for_emulator {
/// 2^x, within 2 ulp; 0 where the result is subnormal.
inline f32 ex2_approx(f32 x) {
  const f32 y = exp2f(x);
  return y < 0x1p-126f ? f32(0.f) : y;
}
}  // namespace for_emulator
#endif

}  // namespace flashladder
