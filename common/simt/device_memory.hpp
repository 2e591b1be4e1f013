#pragma once
#include <cstddef>

namespace flashladder::simt {

/// Where a stage's buffers on a GPU come from in place of CUDA's own pool: an allocator of somebody who
/// calls stages. It has all back when it goes out of scope, on the stream that was current.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// At least `bytes` bytes, aligned to 256. Throws where there are none left.
  virtual void* allocate(std::size_t bytes) = 0;
};

/// That of this OS thread: nullptr is CUDA's pool. The emulator takes no notice.
inline thread_local DeviceMemory* current_memory = nullptr;

/// Makes it the current one of this OS thread while it lives.
class UseMemory {
 public:
  /// nullptr for CUDA's pool.
  explicit UseMemory(DeviceMemory* memory) : before_(current_memory) { current_memory = memory; }
  ~UseMemory() { current_memory = before_; }
  UseMemory(const UseMemory&) = delete;
  UseMemory& operator=(const UseMemory&) = delete;

 private:
  DeviceMemory* before_;
};

}  // namespace flashladder::simt
