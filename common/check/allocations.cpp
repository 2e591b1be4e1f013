#include "common/check/allocations.hpp"

#include <atomic>
#include <cstddef>

// Every way to get memory is counted that a stage could take, except the one that the workspace takes
// (aligned, nothrow). What a counted call, or the workspace's, calls in turn is not counted again.
namespace {
std::atomic<long> count = 0;
thread_local int depth = 0;
struct Call {
  explicit Call(int counts) {
    if (depth++ == 0) count += counts;
  }
  ~Call() { --depth; }
};
}  // namespace

#define WRAPPED_ALLOCATION(name, counts, bytes, parameters, arguments)    \
  extern "C" void* __real_##name parameters;                              \
  extern "C" void* __wrap_##name parameters {                             \
    const Call call(counts);                                              \
    void* const memory = __real_##name arguments;                         \
    if (flashladder::allocation_observer != nullptr && memory != nullptr) \
      flashladder::allocation_observer(memory, bytes, (counts) == 0);     \
    return memory;                                                        \
  }
#define COUNTED_ALLOCATION(name, parameters, arguments) \
  WRAPPED_ALLOCATION(name, 1, size, parameters, arguments)
WRAPPED_ALLOCATION(_ZnwmSt11align_val_tRKSt9nothrow_t, 0, size,
                   (std::size_t size, std::size_t alignment, const void* tag), (size, alignment, tag))
WRAPPED_ALLOCATION(calloc, 1, number* size, (std::size_t number, std::size_t size), (number, size))
COUNTED_ALLOCATION(malloc, (std::size_t size), (size))
COUNTED_ALLOCATION(realloc, (void* old, std::size_t size), (old, size))
COUNTED_ALLOCATION(aligned_alloc, (std::size_t alignment, std::size_t size), (alignment, size))
COUNTED_ALLOCATION(mmap, (void* at, std::size_t size, int a, int b, int c, long d), (at, size, a, b, c, d))
COUNTED_ALLOCATION(_Znwm, (std::size_t size), (size))
COUNTED_ALLOCATION(_Znam, (std::size_t size), (size))
COUNTED_ALLOCATION(_ZnwmRKSt9nothrow_t, (std::size_t size, const void* tag), (size, tag))
COUNTED_ALLOCATION(_ZnwmSt11align_val_t, (std::size_t size, std::size_t alignment), (size, alignment))
COUNTED_ALLOCATION(_ZnamSt11align_val_t, (std::size_t size, std::size_t alignment), (size, alignment))

namespace flashladder {

void (*allocation_observer)(const void* memory, std::size_t bytes, bool by_workspace) = nullptr;

long allocations() {
  return count;
}

}  // namespace flashladder
