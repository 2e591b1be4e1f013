#include "common/labs/program/calls.hpp"

#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "common/simt/global_buffer.hpp"

namespace flashladder::lab {
namespace {

/// Where the program was loaded: what addr2line takes are offsets from there.
std::uint64_t load_address() {
  static const std::uint64_t address = [] {
    std::uint64_t found = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* to) {
          *static_cast<std::uint64_t*>(to) = info->dlpi_addr;
          return 1;  // the program itself comes first
        },
        &found);
    return found;
  }();
  return address;
}

/// Fills `calls` with the calls that led here and returns their number. What lies in libraries is left out.
int find_calls(std::uint64_t (&calls)[Crash::most_calls]) {
  void* all[Crash::most_calls];
  const int count = backtrace(all, Crash::most_calls);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t address = place_in_program(all[i]);
    if (address < (std::uint64_t{1} << 32)) calls[kept++] = address;
  }
  return kept;
}

std::mutex recording;
Crash last;  // of the last exception; its signal is not used

void handle(int signal, siginfo_t* info, void*) {
  struct {
    Frame frame;
    Crash crash;
  } message = {{Frame::Kind::crash, sizeof(Crash)}, {}};
  message.crash.signal = signal;
  // x86 does not say which address it was that no memory can have.
  message.crash.of_device =
      signal == SIGSEGV && (info->si_code == SI_KERNEL ||
                            (reinterpret_cast<std::uintptr_t>(info->si_addr) & simt::device_only) != 0);
  message.crash.count = find_calls(message.crash.calls);
  [[maybe_unused]] const ssize_t written = write(report_fd, &message, sizeof message);
  // Once more, and now it ends the program.
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

std::uint64_t place_in_program(const void* after_call) {
  return reinterpret_cast<std::uint64_t>(after_call) - load_address() - 1;
}

std::vector<std::uint64_t> calls_of_last_exception() {
  const std::lock_guard lock(recording);
  return {last.calls, last.calls + last.count};
}

void report_signals() {
  std::uint64_t calls[Crash::most_calls];
  find_calls(calls);  // the first call loads a library, which a signal's handler must not

  static char memory[64 << 10];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof memory;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_ONSTACK | SA_SIGINFO;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU})
    sigaction(signal, &action, nullptr);
}

}  // namespace flashladder::lab

// The linker gives these names (--wrap).
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" [[noreturn]] void __real___cxa_throw(void* exception, void* type, void (*destroy)(void*));
extern "C" [[noreturn]] void __wrap___cxa_throw(void* exception, void* type, void (*destroy)(void*)) {
  using namespace flashladder::lab;
  {
    const std::lock_guard lock(recording);
    last.count = find_calls(last.calls);
  }
  __real___cxa_throw(exception, type, destroy);
}
// NOLINTEND(bugprone-reserved-identifier)
