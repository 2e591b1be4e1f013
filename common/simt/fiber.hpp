#pragma once
#include <cstddef>
#include <cstdint>

// Which sanitizer must be told about switches of stack. g++ and clang say it differently.
#if defined(__SANITIZE_ADDRESS__)
#define FLASHLADDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FLASHLADDER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FLASHLADDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FLASHLADDER_TSAN 1
#endif
#endif

namespace flashladder::simt {

/// The memory that a fiber runs on.
struct Stack {
  std::byte* lowest;  ///< Stacks grow down towards it.
  std::size_t bytes;  ///< Usable bytes from `lowest` up.
};

/// Stacks in one mapping, each above a stretch of memory that may not be touched, so that an overflow stops
/// instead of spilling into the neighbour. Memory is taken from the system only as it is touched.
class StackPool {
 public:
#if defined(FLASHLADDER_ASAN) || defined(FLASHLADDER_TSAN)
  static constexpr std::size_t bytes_each = 256 << 10;  ///< Instrumented frames are several times larger.
#else
  static constexpr std::size_t bytes_each = 64 << 10;  ///< Usable bytes of a stack.
#endif
  /// What may not be touched below a stack. More than a page, because the frame of a function with a large
  /// array could step right over one.
  static constexpr std::size_t guard_bytes = 256 << 10;

  /// Room for `count` stacks. Throws Error when the system gives no address space.
  explicit StackPool(int count);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  /// The i-th stack, 0 <= i < count.
  Stack operator[](int i) const;
  /// Whether an address lies below one of the stacks, where nothing may be touched.
  bool is_guard(const void* address) const;

 private:
  std::size_t total_;
  std::byte* memory_;
};

/// A line of execution with its own stack, which runs only when it is switched to. A default-constructed
/// fiber stands for the OS thread's own stack. Fibers of one OS thread never move to another.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The first switch to this fiber will call `entry` at the top of `stack`, less `offset` bytes (so that
  /// the stacks of many fibers do not all compete for the same lines of the cache). `entry` must never
  /// return. What ran on the stack before is forgotten.
  void prepare(Stack stack, void (*entry)(), std::size_t offset = 0);

  /// Says that this fiber is resumed soon: the cache fetches the part of its stack that comes first.
  void expect() const {
    constexpr int lines = 6;  // of 64 bytes: the frames of what suspended it
    for (int line = 0; line < lines; ++line)
      __builtin_prefetch(static_cast<const std::byte*>(stack_pointer_) + 64 * line, 1);
  }

  /// Suspends `from`, the running fiber, and resumes `to`. Returns when something switches back to `from`.
  static void switch_to(Fiber& from, Fiber& to);

  /// As switch_to, but `from` is never resumed.
  [[noreturn]] static void leave(Fiber& from, Fiber& to);

 private:
  static void run_first();
  void before_switch(Fiber& to, bool leaving);
  void after_switch();

  void* stack_pointer_ = nullptr;
  void (*entry_)() = nullptr;
#ifdef FLASHLADDER_ASAN
  const void* lowest_ = nullptr;
  std::size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
#endif
#ifdef FLASHLADDER_TSAN
  void* context_ = nullptr;
  bool owns_context_ = false;
  unsigned uses_ = 0;
#endif
};

}  // namespace flashladder::simt
