#pragma once
// The emulator's words for nvcc: an alias or one instruction each, so that nothing is left of them in the
// machine code. README.md beside it explains each word. Kernels compiled at run time include it too: no
// header of the host, which device_host.hpp has.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/simt/std.hpp"

namespace flashladder::simt {
// One program may hold kernels compiled for both, so the names must differ from the emulator's.
inline namespace for_cuda {

/// A float.
using f32 = float;
/// A bfloat16 number.
using bf16 = __nv_bfloat16;
/// An IEEE half-precision number.
using f16 = __half;
/// A pointer into global memory.
template <class T>
using gmem = T* __restrict__;
/// A pointer into shared memory.
template <class T>
using smem = T*;

/// A shared array of R x C elements as a helper function takes it, whatever its name. Its start is aligned
/// for load4.
template <class T, int R, int C>
struct alignas(16) smem_tile {
  T data[R][C];  ///< Rows one after the other.

  /// Element (i, j).
  __device__ __forceinline__ T& operator()(int i, int j) { return data[i][j]; }
  /// Element i of all R * C, row by row.
  __device__ __forceinline__ T& operator[](int i) { return data[0][i]; }
  /// A pointer to element (i, j).
  __device__ __forceinline__ T* at(int i, int j) { return &data[i][j]; }
  /// A pointer to its first element.
  __device__ __forceinline__ operator T*() { return data[0]; }
};

/// The name of a shared array, as a template argument.
template <std::size_t N>
struct Name {
  char text[N];  ///< Ends in a zero.
  /// From a string literal.
  __host__ __device__ constexpr Name(const char (&literal)[N]) : text{} {
    for (std::size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
};

/// A shared array of R x C elements; the name is the emulator's.
template <class T, int R, int C = 1, Name name = "(unnamed)">
struct smem_array : smem_tile<T, R, C> {};

/// Dynamic shared memory from byte `offset` on; the name is the emulator's.
template <class T, Name name = "dynamic">
__device__ __forceinline__ T* dynamic_smem(std::size_t offset = 0) {
  // The swizzle of TMA and wgmma goes by the address: its pattern of 1024 bytes begins where the memory
  // does.
  extern __shared__ __align__(1024) unsigned char flashladder_dynamic_shared[];
  return reinterpret_cast<T*>(flashladder_dynamic_shared + offset);
}

/// A shared array in dynamic shared memory, at `offset` bytes, a multiple of 16.
template <class T, int R, int C = 1, Name name = "dynamic">
__device__ __forceinline__ smem_tile<T, R, C>& dynamic_tile(std::size_t offset) {
  return *reinterpret_cast<smem_tile<T, R, C>*>(dynamic_smem<unsigned char>(offset));
}

/// The two elements from p on, as one access of 8 bytes.
__device__ __forceinline__ float2 load2(const float* p) {
  return *reinterpret_cast<const float2*>(p);
}
/// The four elements from p on, as one access of 16 bytes.
__device__ __forceinline__ float4 load4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
/// Stores four elements from p on, as one access of 16 bytes.
__device__ __forceinline__ void store4(float* p, float4 value) {
  *reinterpret_cast<float4*>(p) = value;
}
/// One step of a matrix product, acc += a * b.
__device__ __forceinline__ void mac(float& acc, float a, float b) {
  acc = fmaf(a, b, acc);
}
/// Adds to the element that p points to, as one operation; returns what was there.
template <class T>
__device__ __forceinline__ T atomic_add(T* p, T value) {
  return atomicAdd(p, value);
}
/// The next number of a counter that all blocks share: no block has drawn it before.
__device__ __forceinline__ int draw(int* counter) {
  return atomicAdd(counter, 1);
}
/// Counts on the emulator only.
__device__ __forceinline__ void count_tile([[maybe_unused]] bool masked = false) {}

}  // namespace for_cuda
}  // namespace flashladder::simt
