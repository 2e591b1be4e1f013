#include "common/simt/fiber.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "common/error.hpp"

#ifdef FLASHLADDER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FLASHLADDER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// flashladder_switch(void** save, void* resume): pushes the registers that a call must preserve, stores the
// stack pointer in *save, takes `resume` as the stack pointer, pops the same registers and returns to where
// that stack was left. To the compiler it is an ordinary call of a function it cannot see into. It ends by
// `ret` and no jump: the processor predicts where returns go by the calls before them. Most threads were
// suspended at the same place, so the predictions for the one that was left suit the one that goes on.
extern "C" void flashladder_switch(void** save, void* resume);

#if defined(__x86_64__)
asm(R"(
.text
.globl flashladder_switch
.hidden flashladder_switch
.type flashladder_switch, @function
flashladder_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size flashladder_switch, .-flashladder_switch
)");
namespace {
constexpr std::size_t frame_words = 8;  // six registers, the return address, and one word to align
constexpr std::size_t return_word = 6;  // which of them is the return address
}  // namespace
#elif defined(__aarch64__)
asm(R"(
.text
.globl flashladder_switch
.hidden flashladder_switch
.type flashladder_switch, %function
flashladder_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size flashladder_switch, .-flashladder_switch
)");
namespace {
constexpr std::size_t frame_words = 20;
constexpr std::size_t return_word = 11;
}  // namespace
#else
#error "simt: no switch of stacks for this processor yet; fiber.cpp needs its twenty lines"
#endif

namespace flashladder::simt {
namespace {

constexpr std::size_t stride = StackPool::guard_bytes + StackPool::bytes_each;

thread_local Fiber* switched_from = nullptr;
thread_local Fiber* switched_to = nullptr;

}  // namespace

StackPool::StackPool(int count) : total_(stride * static_cast<std::size_t>(count)) {
  void* memory = mmap(nullptr, total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("the emulator could not reserve memory for its threads' stacks");
  memory_ = static_cast<std::byte*>(memory);
  for (int i = 0; i < count; ++i) {
    const Stack stack = (*this)[i];
    if (mprotect(stack.lowest, stack.bytes, PROT_READ | PROT_WRITE) != 0) {
      munmap(memory_, total_);
      throw Error("the emulator could not get memory for its threads' stacks: run fewer blocks at a time");
    }
  }
}

StackPool::~StackPool() {
#ifdef FLASHLADDER_ASAN
  ASAN_UNPOISON_MEMORY_REGION(memory_, total_);
#endif
  munmap(memory_, total_);
}

Stack StackPool::operator[](int i) const {
  return {memory_ + static_cast<std::size_t>(i) * stride + guard_bytes, bytes_each};
}

bool StackPool::is_guard(const void* address) const {
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(memory_);
  return offset < total_ && offset % stride < guard_bytes;
}

Fiber::~Fiber() {
#ifdef FLASHLADDER_TSAN
  if (owns_context_) __tsan_destroy_fiber(context_);
#endif
}

void Fiber::prepare(Stack stack, void (*entry)(), std::size_t offset) {
  entry_ = entry;
#ifdef FLASHLADDER_ASAN
  ASAN_UNPOISON_MEMORY_REGION(stack.lowest, stack.bytes);
  lowest_ = stack.lowest;
  bytes_ = stack.bytes;
  fake_stack_ = nullptr;
#endif
#ifdef FLASHLADDER_TSAN
  // A fiber that is left for good leaves its calls on the sanitizer's own stack of calls, which has an end;
  // but a new context costs far more than a run of the fiber.
  constexpr unsigned most_uses = 256;
  if (owns_context_ && ++uses_ == most_uses) {
    __tsan_destroy_fiber(context_);
    owns_context_ = false;
  }
  if (!owns_context_) {
    context_ = __tsan_create_fiber(0);
    owns_context_ = true;
    uses_ = 0;
  }
#endif
  const std::uintptr_t top =
      (reinterpret_cast<std::uintptr_t>(stack.lowest) + stack.bytes - offset) & ~std::uintptr_t{15};
  void** frame = reinterpret_cast<void**>(top) - frame_words;
  std::memset(frame, 0, frame_words * sizeof(void*));
  frame[return_word] = reinterpret_cast<void*>(&run_first);
  stack_pointer_ = frame;
}

void Fiber::run_first() {
  switched_to->after_switch();
  switched_to->entry_();
  std::abort();  // entry must not return: there is nothing to return to
}

void Fiber::before_switch([[maybe_unused]] Fiber& to, [[maybe_unused]] bool leaving) {
  switched_from = this;
  switched_to = &to;
#ifdef FLASHLADDER_ASAN
  __sanitizer_start_switch_fiber(leaving ? nullptr : &fake_stack_, to.lowest_, to.bytes_);
#endif
#ifdef FLASHLADDER_TSAN
  if (context_ == nullptr) context_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.context_, 0);
#endif
}

void Fiber::after_switch() {
#ifdef FLASHLADDER_ASAN
  // Tells where the stack that was left lies, which nobody else knows of the OS thread's own.
  __sanitizer_finish_switch_fiber(fake_stack_, &switched_from->lowest_, &switched_from->bytes_);
#endif
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  from.before_switch(to, false);
  flashladder_switch(&from.stack_pointer_, to.stack_pointer_);
  from.after_switch();
}

void Fiber::leave(Fiber& from, Fiber& to) {
  from.before_switch(to, true);
  flashladder_switch(&from.stack_pointer_, to.stack_pointer_);
  std::abort();
}

}  // namespace flashladder::simt
