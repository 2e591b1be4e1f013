#pragma once
// red.global.add.v4.f32: four neighbours in global memory added to by one instruction, where the GPU has
// it. (PTX ISA, parallel synchronization and communication instructions, red.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)
inline namespace for_cuda {
/// Adds to the four elements from p on, 16 bytes, each as one operation: one instruction from compute
/// capability 9.0 on, four before.
__device__ __forceinline__ void atomic_add4(float* p, float4 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
#else
  atomicAdd(p, value.x);
  atomicAdd(p + 1, value.y);
  atomicAdd(p + 2, value.z);
  atomicAdd(p + 3, value.w);
#endif
}
}  // namespace for_cuda
#else
inline namespace for_emulator {
/// Adds to the four elements from p on, 16 bytes, each as one operation: one instruction, as on the GPU
/// that is emulated, but four atomics.
inline void atomic_add4(simt::gmem<f32> p, float4 value, simt::Where where = simt::Where::here()) {
  simt::add_atomically<4>(p, {value.x, value.y, value.z, value.w}, where);
}
}  // namespace for_emulator
#endif

}  // namespace flashladder
