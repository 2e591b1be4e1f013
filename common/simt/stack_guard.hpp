#pragma once
#include <csignal>
#include <cstddef>
#include <memory>

namespace flashladder::simt {

/// While it lives, a touch of forbidden memory by this OS thread (SIGSEGV, SIGBUS) for which `is_ours` says
/// yes calls `react` on a stack of its own; `react` must not return. Any other goes where it would have
/// gone. Under AddressSanitizer and ThreadSanitizer, which report such a touch themselves, it does nothing.
class StackGuard {
 public:
  /// Starts to watch.
  StackGuard(bool (*is_ours)(const void* address), void (*react)());
  ~StackGuard();
  StackGuard(const StackGuard&) = delete;
  StackGuard& operator=(const StackGuard&) = delete;

 private:
  std::unique_ptr<std::byte[]> stack_;
  stack_t stack_before_ = {};
};

}  // namespace flashladder::simt
