#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashladder {

/// What a stage runs on. The stages 0x are C++ for the CPU. All others are CUDA kernels, compiled twice
/// from one source: for the emulator (common/simt), which is always there, and by nvcc for a GPU.
enum class Backend {
  cpu,       ///< C++.
  emulator,  ///< CUDA kernels on the CPU, with a ledger.
  cuda,      ///< CUDA kernels on a GPU.
};

/// "cpu", "emulator" or "cuda".
std::string_view to_string(Backend backend);

/// What "auto" stands for: cuda where it can run, else the emulator.
Backend best_backend();

/// Empty when kernels of `backend` can run here; else one sentence that says what is missing (nvcc at build
/// time, a driver, a GPU, a GPU that is new enough) and what to do.
std::string unavailable(Backend backend);

/// The number of the current GPU of this OS thread; -1 without one.
int current_gpu();

/// Of the current GPU: 80 for compute capability 8.0. Throws Error, as unavailable says it, without one.
int gpu_architecture();

/// Multiprocessors of the current GPU. Throws Error as gpu_architecture.
int gpu_multiprocessors();

/// The size of its L2 cache. Throws Error as gpu_architecture.
std::int64_t gpu_L2_bytes();

/// That of Hopper, as gpu_architecture() has it.
inline constexpr int hopper_architecture = 90;

/// "8.0" of 80.
std::string capability(int architecture);

/// "NVIDIA H200"; "" without a GPU.
std::string gpu_name();

/// The facts that belong to a result on the current GPU: its name first, driver, clocks, multiprocessors,
/// memory; none without one.
std::vector<std::pair<std::string, std::string>> gpu_facts();

/// Bytes of memory free for a stage of `backend`.
std::int64_t free_memory(Backend backend);

/// Memory that the kernels of a backend reach: the GPU's for cuda, else the host's.
class BackendMemory {
 public:
  /// `bytes` bytes, of undefined contents. Throws OutOfMemory.
  BackendMemory(Backend backend, std::int64_t bytes);
  ~BackendMemory();
  BackendMemory(const BackendMemory&) = delete;
  BackendMemory& operator=(const BackendMemory&) = delete;

  /// Of the first byte, for the backend's kernels.
  void* data() const { return data_; }
  /// How many.
  std::int64_t bytes() const { return bytes_; }
  /// Copies `count` bytes from the host to byte `at`.
  void upload(std::int64_t at, const void* from, std::int64_t count);
  /// Copies `count` bytes from byte `at` to the host.
  void download(std::int64_t at, void* to, std::int64_t count) const;

 private:
  Backend backend_;
  std::int64_t bytes_;
  void* data_ = nullptr;
};

/// Waits for the kernels of `backend`. Throws Error when one of them failed.
void synchronise(Backend backend);

/// Times what runs on the GPU between start() and stop(), by its own clock. The L2 cache is emptied before
/// each start, as in production benchmarks.
class GpuTimer {
 public:
  GpuTimer();
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  /// Empties the L2 cache and starts.
  void start();
  /// Milliseconds since start().
  double stop();

 private:
  BackendMemory flushed_;
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace flashladder
