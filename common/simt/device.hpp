#pragma once
// The emulator's words for nvcc: an alias or one instruction each, so that nothing is left of them in the
// machine code. README.md beside it explains each word.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/error.hpp"
#include "common/simt/stream.hpp"

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
  constexpr Name(const char (&literal)[N]) : text{} {
    for (std::size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
};

/// A shared array of R x C elements; the name is the emulator's.
template <class T, int R, int C = 1, Name name = "(unnamed)">
struct smem_array : smem_tile<T, R, C> {};

/// Dynamic shared memory from byte `offset` on; the name is the emulator's.
template <class T, Name name = "dynamic">
__device__ __forceinline__ T* dynamic_smem(std::size_t offset = 0) {
  extern __shared__ __align__(16) unsigned char flashladder_dynamic_shared[];
  return reinterpret_cast<T*>(flashladder_dynamic_shared + offset);
}

/// A shared array in dynamic shared memory, at `offset` bytes, a multiple of 16.
template <class T, int R, int C = 1, Name name = "dynamic">
__device__ __forceinline__ smem_tile<T, R, C>& dynamic_tile(std::size_t offset) {
  return *reinterpret_cast<smem_tile<T, R, C>*>(dynamic_smem<unsigned char>(offset));
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
/// Counts on the emulator only.
__device__ __forceinline__ void count_tile([[maybe_unused]] bool masked = false) {}

/// The current stream as CUDA knows it.
inline cudaStream_t stream() {
  return static_cast<cudaStream_t>(current_stream);
}

/// Throws Error when a call of the CUDA runtime failed.
inline void require(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) throw Error(what + ": " + cudaGetErrorString(status));
}

/// Makes the memory pool keep all that is freed.
inline cudaError_t keep_freed_memory() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  std::uint64_t all = ~std::uint64_t{0};
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (const cudaError_t status = cudaDeviceGetDefaultMemPool(&pool, device); status != cudaSuccess)
    return status;
  return cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
}

/// Counts on the emulator only.
struct Uncounted {
  Uncounted() {}
};

/// Device memory with a name.
template <class T>
class DeviceBuffer {
 public:
  using Host = T;  ///< What is uploaded and downloaded.

  /// Owns `elements` elements. Throws Error when there is not enough memory.
  DeviceBuffer(const std::string& name, std::int64_t elements)
      : name_(name), elements_(elements), owns_(true) {
    // From a pool that keeps what is freed: neither waits for the kernels that run.
    static const cudaError_t pool_ready = keep_freed_memory();
    require(pool_ready, "the memory pool");
    void* data = nullptr;
    const cudaError_t status = cudaMallocAsync(&data, std::max<std::size_t>(bytes(), 1), stream());
    data_ = static_cast<T*>(data);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // reported here: the next launch must not find it
      std::size_t free = 0;
      std::size_t total = 0;
      (void)cudaMemGetInfo(&free, &total);
      throw Error("out of device memory: buffer " + name + " needs " + std::to_string((bytes() >> 20) + 1) +
                  " MiB, and " + std::to_string(free >> 20) + " MiB are free");
    }
    require(status, "buffer " + name);
  }
  /// A view of `elements` elements of device memory.
  static DeviceBuffer view(const std::string& name, const T* data, std::int64_t elements) {
    return DeviceBuffer(name, const_cast<T*>(data), elements);
  }
  /// As view; that its memory counts as allocated is the emulator's.
  static DeviceBuffer counted_view(const std::string& name, const T* data, std::int64_t elements) {
    return view(name, data, elements);
  }
  ~DeviceBuffer() {
    if (owns_) cudaFreeAsync(data_, stream());
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  /// How many.
  std::int64_t elements() const { return elements_; }
  /// A kernel's pointer to the first element.
  T* ptr() const { return data_; }
  /// A kernel's pointer to the first element.
  operator T*() const { return data_; }

  /// Copies all elements from the host.
  void upload(const Host* from) {
    require(cudaMemcpy(data_, from, bytes(), cudaMemcpyHostToDevice), "upload of " + name_);
  }
  /// Copies all elements to the host.
  void download(Host* to) const {
    require(cudaMemcpy(to, data_, bytes(), cudaMemcpyDeviceToHost), "download of " + name_);
  }
  /// Makes every element a NaN, as memory that nobody has written is on the emulator.
  void poison() { require(cudaMemset(data_, 0xff, bytes()), "filling of " + name_); }
  /// Sets all bytes to zero.
  void fill_zero() { require(cudaMemset(data_, 0, bytes()), "zeroing of " + name_); }

 private:
  DeviceBuffer(const std::string& name, T* data, std::int64_t elements)
      : name_(name), elements_(elements), owns_(false), data_(data) {}
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * sizeof(T); }

  std::string name_;
  std::int64_t elements_;
  bool owns_;
  T* data_ = nullptr;
};

/// Starts `kernel` on a grid of blocks with `shared_bytes` bytes of dynamic shared memory each. Throws
/// Error when the GPU does not take it; errors while it runs show at the next copy or synchronisation.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Arguments&&... arguments) {
  const std::string what = std::string("kernel ") + name;
  // More than 48 KiB, declared arrays included, must be asked for.
  if (shared_bytes > 0)
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            what + " with " + std::to_string(shared_bytes) + " bytes of dynamic shared memory");
  kernel<<<grid, block, shared_bytes, stream()>>>(static_cast<Parameters>(arguments)...);
  require(cudaGetLastError(), what);
}

}  // namespace for_cuda
}  // namespace flashladder::simt
