#include "common/simt/stack_guard.hpp"

#include <mutex>

#include "common/simt/fiber.hpp"

namespace flashladder::simt {
namespace {

#if defined(FLASHLADDER_ASAN) || defined(FLASHLADDER_TSAN)
constexpr bool enabled = false;
#else
constexpr bool enabled = true;
#endif

constexpr std::size_t stack_bytes = 64 << 10;

std::mutex mutex;  // of what follows
int guards = 0;
struct sigaction segv_before = {};
struct sigaction bus_before = {};

thread_local bool (*is_ours_here)(const void*) = nullptr;
thread_local void (*react_here)() = nullptr;

void handle(int signal, siginfo_t* info, void*) {
  if (is_ours_here != nullptr && is_ours_here(info->si_addr)) react_here();
  // Not ours: put back what was there, and let the same instruction fault again.
  sigaction(signal, signal == SIGSEGV ? &segv_before : &bus_before, nullptr);
}

}  // namespace

StackGuard::StackGuard(bool (*is_ours)(const void* address), void (*react)()) {
  if (!enabled) return;
  stack_ = std::make_unique<std::byte[]>(stack_bytes);
  stack_t stack = {};
  stack.ss_sp = stack_.get();
  stack.ss_size = stack_bytes;
  sigaltstack(&stack, &stack_before_);
  is_ours_here = is_ours;
  react_here = react;
  const std::lock_guard lock(mutex);
  if (guards++ > 0) return;
  struct sigaction action = {};
  action.sa_sigaction = handle;
  // SA_NODEFER: react leaves the handler for good, and the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &segv_before);
  sigaction(SIGBUS, &action, &bus_before);
}

StackGuard::~StackGuard() {
  if (!enabled) return;
  is_ours_here = nullptr;
  sigaltstack(&stack_before_, nullptr);
  const std::lock_guard lock(mutex);
  if (--guards > 0) return;
  sigaction(SIGSEGV, &segv_before, nullptr);
  sigaction(SIGBUS, &bus_before, nullptr);
}

}  // namespace flashladder::simt
