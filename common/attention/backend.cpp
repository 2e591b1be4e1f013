#include "common/attention/backend.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>

#include "common/attention/workspace.hpp"

#ifdef FLASHLADDER_HAS_CUDA
#include <cuda_runtime.h>
#endif

namespace flashladder {
namespace {

/// Larger than any L2 cache there is.
[[maybe_unused]] constexpr std::int64_t flush_bytes = 256 << 20;

[[noreturn, maybe_unused]] void no_cuda() {
  throw Error(unavailable(Backend::cuda));
}

#ifdef FLASHLADDER_HAS_CUDA
void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// "13.0" of CUDA's 13000.
std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}
#endif

}  // namespace

std::string_view to_string(Backend backend) {
  switch (backend) {
    case Backend::cpu:
      return "cpu";
    case Backend::emulator:
      return "emulator";
    case Backend::cuda:
      return "cuda";
  }
  return "?";
}

std::string capability(int architecture) {
  return std::to_string(architecture / 10) + "." + std::to_string(architecture % 10);
}

std::string gpu_name() {
  const auto facts = gpu_facts();
  return facts.empty() ? "" : facts.front().second;
}

Backend best_backend() {
  return unavailable(Backend::cuda).empty() ? Backend::cuda : Backend::emulator;
}

#ifdef FLASHLADDER_HAS_CUDA

std::string unavailable(Backend backend) {
  if (backend != Backend::cuda) return "";
  static const std::string answer = [] {
    const std::string instead = ": use --backend emulator, which needs none";
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver) {
      int driver = 0;
      (void)cudaDriverGetVersion(&driver);
      if (driver == 0) return "there is no NVIDIA driver on this machine" + instead;
      return "the NVIDIA driver takes CUDA up to " + version(driver) + ", and this build needs " +
             version(CUDART_VERSION) + ": update the driver, or use --backend emulator";
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
      return "there is an NVIDIA driver but no GPU that it may use (see nvidia-smi and "
             "CUDA_VISIBLE_DEVICES)" +
             instead;
    if (status != cudaSuccess)
      return std::string("CUDA does not start: ") + cudaGetErrorString(status) + instead;
    cudaDeviceProp gpu;
    require(cudaGetDeviceProperties(&gpu, 0), "properties of the GPU");
    if (10 * gpu.major + gpu.minor < FLASHLADDER_LEAST_ARCHITECTURE)
      return std::string(gpu.name) + " has compute capability " + capability(10 * gpu.major + gpu.minor) +
             ", and the stages are built for " + capability(FLASHLADDER_LEAST_ARCHITECTURE) + " and newer" +
             instead;
    return std::string();
  }();
  return answer;
}

int current_gpu() {
  int device = -1;
  if (unavailable(Backend::cuda).empty()) require(cudaGetDevice(&device), "the current GPU");
  return device;
}

namespace {

/// What a GPU has, which does not change.
struct Properties {
  int architecture, multiprocessors, L2_bytes;
};

/// Of the current GPU. All are asked once: a call of a stage needs them several times.
const Properties& properties() {
  if (const std::string why = unavailable(Backend::cuda); !why.empty()) throw Error(why);
  static const std::vector<Properties> of_all = [] {
    int count = 0;
    require(cudaGetDeviceCount(&count), "the number of GPUs");
    std::vector<Properties> all;
    for (int device = 0; device < count; ++device) {
      const auto get = [&](cudaDeviceAttr which) {
        int value = 0;
        require(cudaDeviceGetAttribute(&value, which, device), "what the GPU has");
        return value;
      };
      all.push_back({10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor),
                     get(cudaDevAttrMultiProcessorCount), get(cudaDevAttrL2CacheSize)});
    }
    return all;
  }();
  return of_all.at(static_cast<std::size_t>(current_gpu()));
}

}  // namespace

int gpu_architecture() {
  return properties().architecture;
}

int gpu_multiprocessors() {
  return properties().multiprocessors;
}

std::int64_t gpu_L2_bytes() {
  return properties().L2_bytes;
}

std::vector<std::pair<std::string, std::string>> gpu_facts() {
  if (!unavailable(Backend::cuda).empty()) return {};
  int device = 0, driver = 0, core_khz = 0, memory_khz = 0;
  cudaDeviceProp gpu;
  require(cudaGetDevice(&device), "the current GPU");
  require(cudaGetDeviceProperties(&gpu, device), "properties of the GPU");
  require(cudaDriverGetVersion(&driver), "version of the driver");
  require(cudaDeviceGetAttribute(&core_khz, cudaDevAttrClockRate, device), "clock of the GPU");
  require(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device),
          "clock of the GPU's memory");
  std::string module;  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..."
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; module.empty() && file >> word;) {
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) module = word;
  }
  return {{"gpu", gpu.name},
          {"driver", module.empty() ? "unknown" : module},
          {"cuda_of_driver", version(driver)},
          {"cuda_of_build", version(CUDART_VERSION)},
          {"multiprocessors", std::to_string(gpu.multiProcessorCount)},
          {"most_core_mhz", std::to_string(core_khz / 1000)},
          {"most_memory_mhz", std::to_string(memory_khz / 1000)},
          {"memory_mib", std::to_string(gpu.totalGlobalMem >> 20)},
          {"l2_mib", std::to_string(gpu.l2CacheSize >> 20)}};
}

std::int64_t free_memory(Backend backend) {
  if (backend != Backend::cuda) return Workspace::available_memory();
  std::size_t free = 0;
  std::size_t total = 0;
  require(cudaMemGetInfo(&free, &total), "free device memory");
  // What the pool of freed workspaces keeps is free as well.
  cudaMemPool_t pool;
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;
  require(cudaDeviceGetDefaultMemPool(&pool, 0), "the memory pool");
  require(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), "the memory pool");
  require(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), "the memory pool");
  return static_cast<std::int64_t>(free + reserved - used);
}

void synchronise(Backend backend) {
  if (backend == Backend::cuda) require(cudaDeviceSynchronize(), "the kernel failed on the GPU");
}

#else

std::string unavailable(Backend backend) {
  return backend != Backend::cuda
             ? ""
             : "this build has no GPU stages, because CMake found no CUDA compiler: put nvcc on "
               "the PATH and set up again, or use --backend emulator";
}

int current_gpu() {
  return -1;
}

int gpu_architecture() {
  no_cuda();
}

int gpu_multiprocessors() {
  no_cuda();
}

std::int64_t gpu_L2_bytes() {
  no_cuda();
}

std::vector<std::pair<std::string, std::string>> gpu_facts() {
  return {};
}

std::int64_t free_memory(Backend backend) {
  if (backend == Backend::cuda) no_cuda();
  return Workspace::available_memory();
}

void synchronise(Backend backend) {
  if (backend == Backend::cuda) no_cuda();
}

#endif

BackendMemory::BackendMemory(Backend backend, std::int64_t bytes) : backend_(backend), bytes_(bytes) {
  if (backend != Backend::cuda) {
    data_ = ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{64}, std::nothrow);
  } else {
#ifdef FLASHLADDER_HAS_CUDA
    if (const std::string why = unavailable(backend); !why.empty()) throw Error(why);
    const cudaError_t status =
        cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    (void)cudaGetLastError();  // reported here: the next launch must not find it
    if (status != cudaErrorMemoryAllocation) require(status, "device memory");
#else
    no_cuda();
#endif
  }
  if (data_ == nullptr) throw OutOfMemory(bytes, 0, free_memory(backend));
}

BackendMemory::~BackendMemory() {
  if (backend_ != Backend::cuda) ::operator delete (data_, std::align_val_t{64});
#ifdef FLASHLADDER_HAS_CUDA
  if (backend_ == Backend::cuda) cudaFree(data_);
#endif
}

void BackendMemory::upload(std::int64_t at, const void* from, std::int64_t count) {
  void* const to = static_cast<std::byte*>(data_) + at;
  if (backend_ != Backend::cuda) std::memcpy(to, from, static_cast<std::size_t>(count));
#ifdef FLASHLADDER_HAS_CUDA
  if (backend_ == Backend::cuda)
    require(cudaMemcpy(to, from, static_cast<std::size_t>(count), cudaMemcpyHostToDevice),
            "copy to the GPU");
#endif
}

void BackendMemory::download(std::int64_t at, void* to, std::int64_t count) const {
  const void* const from = static_cast<const std::byte*>(data_) + at;
  if (backend_ != Backend::cuda) std::memcpy(to, from, static_cast<std::size_t>(count));
#ifdef FLASHLADDER_HAS_CUDA
  if (backend_ == Backend::cuda)
    require(cudaMemcpy(to, from, static_cast<std::size_t>(count), cudaMemcpyDeviceToHost),
            "copy from the GPU");
#endif
}

#ifdef FLASHLADDER_HAS_CUDA

GpuTimer::GpuTimer() : flushed_(Backend::cuda, flush_bytes) {
  cudaEvent_t begin;
  cudaEvent_t end;
  require(cudaEventCreate(&begin), "timer");
  require(cudaEventCreate(&end), "timer");
  begin_ = begin;
  end_ = end;
}

GpuTimer::~GpuTimer() {
  cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  cudaEventDestroy(static_cast<cudaEvent_t>(end_));
}

void GpuTimer::start() {
  require(cudaMemsetAsync(flushed_.data(), 0, static_cast<std::size_t>(flushed_.bytes())),
          "flush of the L2 cache");
  require(cudaEventRecord(static_cast<cudaEvent_t>(begin_)), "timer");
}

double GpuTimer::stop() {
  require(cudaEventRecord(static_cast<cudaEvent_t>(end_)), "timer");
  require(cudaEventSynchronize(static_cast<cudaEvent_t>(end_)), "the kernel failed on the GPU");
  float ms = 0;
  require(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin_), static_cast<cudaEvent_t>(end_)),
          "timer");
  return ms;
}

#else

GpuTimer::GpuTimer() : flushed_(Backend::cuda, 0) {}
GpuTimer::~GpuTimer() = default;
void GpuTimer::start() {
  no_cuda();
}
double GpuTimer::stop() {
  no_cuda();
}

#endif

}  // namespace flashladder
