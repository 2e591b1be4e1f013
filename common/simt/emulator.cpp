#include "common/simt/emulator.hpp"

#include <atomic>
#include <utility>

#include "common/simt/global_buffer.hpp"
#include "common/simt/scheduler.hpp"

namespace flashladder::simt {
namespace {

thread_local Emulator* current_emulator = nullptr;
std::atomic<std::uint32_t> launch_count = 0;

/// While it lives, what kernels show goes to the trace.
class ShowsToTrace {
 public:
  explicit ShowsToTrace(bool traced) : before_(Emulator::probe) {
    if (traced) Emulator::probe = show_to_trace;
  }
  ~ShowsToTrace() { Emulator::probe = before_; }
  ShowsToTrace(const ShowsToTrace&) = delete;
  ShowsToTrace& operator=(const ShowsToTrace&) = delete;

 private:
  decltype(Emulator::probe) before_;
};

}  // namespace

void Emulator::run(Launch launch) {
  launch.number = ++launch_count;
  if (!launch.dependent) unfinished_ = launch.number;
  launch.unfinished = unfinished_;
  launch.options = &options;
  if (!options.check) GlobalBuffer::forget_what_is_written();
  launch.trace = nullptr;
  if (options.trace != nullptr && counts) {
    launch.trace = &options.trace->launches.emplace_back(LaunchTrace{launch.kernel, launch.grid, 0, {}});
  }
  const ShowsToTrace shows(launch.trace != nullptr);
  Ledger ledger = run_grid(launch);
  if (counts) launches_.push_back(std::move(ledger));
}

Ledger Emulator::total() const {
  Ledger sum;
  if (launches_.empty()) return sum;
  sum = launches_.front();
  for (std::size_t i = 1; i < launches_.size(); ++i) sum += launches_[i];
  return sum;
}

Emulator& Emulator::current() {
  static thread_local Emulator fallback;
  return current_emulator != nullptr ? *current_emulator : fallback;
}

UseEmulator::UseEmulator(Emulator& emulator) : before_(current_emulator) {
  current_emulator = &emulator;
}

UseEmulator::~UseEmulator() {
  current_emulator = before_;
}

Uncounted::Uncounted() : emulator_(Emulator::current()), before_(emulator_.counts) {
  emulator_.counts = false;
}

Uncounted::~Uncounted() {
  emulator_.counts = before_;
}

}  // namespace flashladder::simt
