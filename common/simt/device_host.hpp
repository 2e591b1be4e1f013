#pragma once
// What the host side of a stage uses, for nvcc: streams, buffers and launch() by the CUDA runtime.
// launch.hpp has it for the emulator.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/error.hpp"
#include "common/simt/device_memory.hpp"
#include "common/simt/stream.hpp"

namespace flashladder::simt {
// One program may hold both, so the names must differ from the emulator's.
inline namespace for_cuda {

/// The current stream as CUDA knows it.
inline cudaStream_t stream() {
  return static_cast<cudaStream_t>(current_stream);
}

/// Throws Error when a call of the CUDA runtime failed: `what` says which, in parts that are put together
/// only then.
template <class... Parts>
void require(cudaError_t status, const Parts&... what) {
  if (status != cudaSuccess) throw Error((std::string() + ... + what) + ": " + cudaGetErrorString(status));
}

/// Throws Error where a GPU takes no such grid.
inline void require_grid(const char* name, dim3 grid) {
  constexpr unsigned most = 65535;
  if (grid.y <= most && grid.z <= most) return;
  throw Error(std::string("kernel ") + name + " would have a grid of " + std::to_string(grid.x) + " x " +
              std::to_string(grid.y) + " x " + std::to_string(grid.z) +
              " blocks, and a GPU takes at most " + std::to_string(most) +
              " in the last two directions: give fewer batch entries, heads or sequences in one call");
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
      : name_(name), elements_(elements), owns_(current_memory == nullptr) {
    if (!owns_) {
      data_ = static_cast<T*>(current_memory->allocate(std::max<std::size_t>(bytes(), 1)));
      return;
    }
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
    require(status, "buffer ", name);
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
    require(cudaMemcpy(data_, from, bytes(), cudaMemcpyHostToDevice), "upload of ", name_);
  }
  /// Copies all elements to the host.
  void download(Host* to) const {
    require(cudaMemcpy(to, data_, bytes(), cudaMemcpyDeviceToHost), "download of ", name_);
  }
  /// Makes every element a NaN, as memory that nobody has written is on the emulator.
  void poison() { require(cudaMemset(data_, 0xff, bytes()), "filling of ", name_); }
  /// Sets all bytes to zero.
  void fill_zero() { require(cudaMemsetAsync(data_, 0, bytes(), stream()), "zeroing of ", name_); }

 private:
  DeviceBuffer(const std::string& name, T* data, std::int64_t elements)
      : name_(name), elements_(elements), owns_(false), data_(data) {}
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * sizeof(T); }

  std::string name_;
  std::int64_t elements_;
  bool owns_;
  T* data_ = nullptr;
};

/// Makes a kernel ready for such a grid. Throws Error when the GPU does not take it.
template <class Kernel>
void prepare_launch(const char* name, Kernel* kernel, dim3 grid, std::size_t shared_bytes) {
  require_grid(name, grid);
  // More than 48 KiB, declared arrays included, must be asked for.
  if (shared_bytes > 0)
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            "kernel ", name, " with ", std::to_string(shared_bytes), " bytes of dynamic shared memory");
}

/// Starts `kernel` on a grid of blocks with `shared_bytes` bytes of dynamic shared memory each. Throws
/// Error when the GPU does not take it; errors while it runs show at the next copy or synchronisation.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Arguments&&... arguments) {
  prepare_launch(name, kernel, grid, shared_bytes);
  kernel<<<grid, block, shared_bytes, stream()>>>(static_cast<Parameters>(arguments)...);
  require(cudaGetLastError(), "kernel ", name);
}

/// Starts a kernel whose arguments lie at such addresses. `cluster`: the blocks of one. `dependent`: as
/// launch_dependent.
inline cudaError_t start_kernel(unsigned cluster, bool dependent, const void* kernel, dim3 grid, dim3 block,
                                std::size_t shared_bytes, void** arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (dependent) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t how = {};
  how.gridDim = grid;
  how.blockDim = block;
  how.dynamicSmemBytes = shared_bytes;
  how.stream = stream();
  how.attrs = attributes;
  how.numAttrs = count;
  return cudaLaunchKernelExC(&how, kernel, arguments);
}

/// As launch_dependent and launch_clusters.
template <class... Parameters, class... Arguments>
void launch_with(unsigned cluster, bool dependent, const char* name, void (*kernel)(Parameters...),
                 dim3 grid, dim3 block, std::size_t shared_bytes, Arguments&&... arguments) {
  prepare_launch(name, kernel, grid, shared_bytes);
  const auto start = [&](Parameters... parameters) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    return start_kernel(cluster, dependent, reinterpret_cast<const void*>(kernel), grid, block,
                        shared_bytes, addresses);
  };
  require(start(static_cast<Parameters>(arguments)...), "kernel ", name);
}

/// As launch, but the kernel may begin before the one before it has ended: see
/// common/ptx/dependent_launch.hpp.
template <class... Parameters, class... Arguments>
void launch_dependent(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      std::size_t shared_bytes, Arguments&&... arguments) {
  launch_with(1, true, name, kernel, grid, block, shared_bytes, arguments...);
}

/// As launch, of a grid whose blocks come in clusters of `cluster` along x, of which grid.x is a multiple:
/// see common/ptx/cluster.hpp.
template <class... Parameters, class... Arguments>
void launch_clusters(const char* name, void (*kernel)(Parameters...), unsigned cluster, dim3 grid,
                     dim3 block, std::size_t shared_bytes, Arguments&&... arguments) {
  launch_with(cluster, false, name, kernel, grid, block, shared_bytes, arguments...);
}

}  // namespace for_cuda
}  // namespace flashladder::simt
