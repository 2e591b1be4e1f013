#include "common/attention/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

namespace flashladder {
namespace {

constexpr std::align_val_t alignment{64};

std::string mebibytes(std::int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

/// The number behind `key` in a file of "key number" lines; the first number of the file when `key` is
/// empty.
std::int64_t read_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (key.empty() || file >> word) {
    std::int64_t number;
    if (key.empty() || word == key) return file >> number ? number : -1;
  }
  return -1;
}

}  // namespace

OutOfMemory::OutOfMemory(std::int64_t wanted, std::int64_t in_use, std::int64_t limit)
    : Error("out of memory: " + mebibytes(wanted) + " more are needed beside " + mebibytes(in_use) +
            " in use, and " + mebibytes(limit) +
            " are free: use a shorter sequence or leave the stage out"),
      peak(in_use + wanted) {}

std::int64_t Workspace::available_memory() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  if (const std::int64_t kib = read_number("/proc/meminfo", "MemAvailable:"); kib >= 0)
    available = kib << 10;
  // Inside a container the control group may allow less than the machine has.
  const std::int64_t most = read_number("/sys/fs/cgroup/memory.max", "");
  const std::int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
  if (most >= 0 && used >= 0) {
    // What files keep cached counts as used there, and is given back when memory is asked for.
    const std::int64_t cached =
        std::max<std::int64_t>(read_number("/sys/fs/cgroup/memory.stat", "inactive_file"), 0);
    available = std::min(available, std::max<std::int64_t>(most - used + cached, 0));
  }
  return available / 16 * 15;
}

void Workspace::reserve(std::int64_t bytes) {
  const std::int64_t now = in_use_ += bytes;
  if (now > limit_) {
    in_use_ -= bytes;
    throw OutOfMemory(bytes, now - bytes, limit_);
  }
  std::int64_t peak = peak_;
  while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
  }
}

void* Workspace::allocate(std::int64_t bytes) {
  reserve(bytes);
  void* pointer = ::operator new(static_cast<std::size_t>(bytes), alignment, std::nothrow);
  if (pointer == nullptr) {
    in_use_ -= bytes;
    throw OutOfMemory(bytes, in_use_, limit_);
  }
  if (poison)
    std::memset(pointer, 0xff, static_cast<std::size_t>(bytes));  // all ones is a NaN in every dtype
  return pointer;
}

void Workspace::release(void* pointer, std::int64_t bytes) {
  ::operator delete(pointer, alignment);
  in_use_ -= bytes;
}

}  // namespace flashladder
