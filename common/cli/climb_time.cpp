#include "common/cli/climb_time.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>

namespace flashladder {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How often other programs have taken a core from this one so far.
long interruptions() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// One run, in milliseconds: of the machine's clock, or of the GPU's own.
template <class Run>
double timed_run(Run& run, Backend backend, GpuTimer* timer) {
  Workspace workspace(free_memory(backend));
  if (timer != nullptr) {
    timer->start();
    run.start(workspace);
    return timer->stop();
  }
  const auto begin = Clock::now();
  run.run(workspace);
  return 1e3 * seconds_since(begin);
}

/// Times a stage that has passed, until timed_enough().
template <class Run>
void time_stage(Run& run, Climbed& climbed, Progress& progress) {
  std::vector<double>& ms = climbed.ms;
  const std::string name = label(*climbed.stage);
  const Backend backend = climbed.stage->backend;
  const std::unique_ptr<GpuTimer> timer = backend == Backend::cuda ? std::make_unique<GpuTimer>() : nullptr;
  const long before = interruptions();
  const auto start = Clock::now();
  while (!timed_enough(ms.size(), seconds_since(start))) {
    progress.repetition(fmt::format("{}: timed run {} ...", name, ms.size() + 1));
    ms.push_back(timed_run(run, backend, timer.get()));
  }
  // A quiet machine interrupts a program a few times a second. A GPU does not mind.
  climbed.disturbed =
      timer == nullptr && static_cast<double>(interruptions() - before) > 3 + 30 * seconds_since(start);
  std::sort(ms.begin(), ms.end());
}

}  // namespace

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Climbed climb_stage(const Stage& stage, Checker& checker, Progress& progress) {
  Climbed climbed;
  climbed.stage = &stage;
  climbed.dtype = checker.dtype(stage);
  climbed.yardstick = checker.before(stage);
  const Checker::Checked& checked = checker.check(stage);
  climbed.oracle = checked.verdict;
  climbed.why = checked.verdict.why;
  if (checked.out_of_memory) {
    climbed.status = "out of memory";
    climbed.extra_bytes = checked.extra_bytes;
    return climbed;
  }
  if (checked.verdict.blind) climbed.status = "cannot be judged";
  if (!checked.verdict.passed) return climbed;

  // A wrong stage is no yardstick for the next one.
  if (climbed.yardstick != nullptr && checker.check(*climbed.yardstick).verdict.passed) {
    climbed.compared = climbed.yardstick;
    climbed.before = checker.against(stage, *climbed.compared);
    climbed.why = climbed.before.why;
    if (!climbed.before.passed) return climbed;
  }

  if (climbed.emulated()) {  // its time would be the emulator's
    climbed.ledger = checked.ledger;
    climbed.extra_bytes = checked.ledger.extra_bytes;
    climbed.status = "passed";
    return climbed;
  }
  try {
    checker.with_run(stage, [&](auto& run) {
      Workspace workspace(free_memory(stage.backend));
      run.run(workspace);  // also the warm-up
      climbed.extra_bytes = workspace.peak_bytes();
      time_stage(run, climbed, progress);
    });
    if (stage.backend == Backend::cuda) {
      progress.step(label(stage) + ": counting on the emulator ...");
      const Stage& twin = find_stage(stage.number);
      climbed.ledger = count_launches([&] {
        checker.with_run(twin, [](auto& run) {
          Workspace host;
          run.run(host);
        });
      });
    }
    climbed.status = "passed";
  } catch (const std::exception& error) {  // other programs may have taken the memory meanwhile
    climbed.ms.clear();
    climbed.why = one_line(error.what());
  }
  return climbed;
}

}  // namespace flashladder
