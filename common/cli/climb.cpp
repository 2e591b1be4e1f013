#include "common/cli/climb.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/check/check.hpp"
#include "common/check/inputs.hpp"
#include "common/check/sample.hpp"
#include "common/cli/ledger.hpp"
#include "common/cli/terminal.hpp"
#include "common/cli/version.hpp"
#include "common/io/whole_file.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace flashladder {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The quantile q of sorted times.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// What became of one stage.
struct Climbed {
  const Stage* stage = nullptr;
  /// "passed", "failed", "cannot be judged" (on these inputs, since they would not show what is wrong) or
  /// "out of memory".
  std::string status = "failed";
  std::string why;                   ///< Why not passed.
  Verdict oracle, before;            ///< `before` is not checked where there is no stage before.
  const Stage* yardstick = nullptr;  ///< The stage before; nullptr where there is none.
  const Stage* compared = nullptr;   ///< The same where it is right.
  std::int64_t extra_bytes = 0;      ///< Peak extra memory; what it would have been where that did not fit.
  std::vector<double> ms;            ///< Sorted; empty unless passed, and where emulated.
  LedgerSummary ledger;              ///< Of a stage of kernels that passed.
  bool disturbed = false;            ///< Other programs ran on the same cores meanwhile.

  bool passed() const { return status == "passed"; }
  bool emulated() const { return stage->backend == Backend::emulator; }
  bool counted() const { return passed() && stage->backend != Backend::cpu; }
  bool timed() const { return !ms.empty(); }
  double median() const { return quantile(ms, 0.5); }
  double spread() const { return (quantile(ms, 0.75) - quantile(ms, 0.25)) / 2; }
};

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

/// What the emulator says in several lines, in one.
std::string one_line(std::string text) {
  for (std::size_t at; (at = text.find('\n')) != std::string::npos;) {
    const std::size_t next = std::min(text.find_first_not_of(" \n", at), text.size());
    text.replace(at, next - at, next < text.size() ? "; " : "");
  }
  return text;
}

/// Right results first, a stage at a time, each computed once however many stages are compared with it.
class Checker {
 public:
  /// @param patience  seconds for the oracle of all rows; where it takes longer, a sample of them is
  /// judged. Without it nothing is judged.
  Checker(const Inputs& inputs, bool backward, Progress& progress, std::optional<double> patience = {})
      : inputs_(inputs), backward_(backward), progress_(progress) {
    if (patience) seconds_for_all_ = oracle_seconds(inputs.problem, backward);
    if (!backward_) {
      if (patience && seconds_for_all_ > *patience) sample_ = sample_of(inputs);
      return;
    }
    dO_ = random_output_gradient(inputs.problem, 1);
    saved_ = saved_forward(inputs);
  }

  /// The rows that are judged; none where all are.
  const std::vector<Chunk>& sample() const { return sample_; }
  /// How long the oracle of all rows takes, about.
  double seconds_for_all() const { return seconds_for_all_; }

  struct Checked {
    Verdict verdict;
    Result<float> result;        ///< Of the forward pass.
    Gradients<float> gradients;  ///< Of the backward pass.
    LedgerSummary ledger;        ///< Of an emulated stage.
    std::int64_t extra_bytes = 0;
    bool out_of_memory = false;
  };

  const Checked& check(const Stage& stage) {
    const auto [at, is_new] = checked_.try_emplace(stage.number);
    Checked& checked = at->second;
    if (!is_new) return checked;
    const Right& right = right_for(stage);
    const auto run = [&] {
      checked.verdict =
          backward_ ? run_and_check_backward(stage, inputs_, saved_, dO_, Layout::contiguous,
                                             right.gradients, &checked.gradients)
          : sample_.empty()
              ? run_and_check(stage, inputs_, Layout::contiguous, right.forward, &checked.result)
              : run_and_check_sample(stage, inputs_, sample_, right.sample, &checked.result);
    };
    const double seconds = sample_.empty() ? 0 : stage_seconds(stage, inputs_.problem);
    const std::string about =
        seconds > 5 ? fmt::format(", about {} for each run", duration_text(seconds)) : "";
    try {
      if (stage.backend == Backend::emulator) {
        progress_.step(label(stage) + ": checking and counting on the emulator" + about + " ...");
        checked.ledger = count_launches(run);
      } else {
        progress_.step(label(stage) + ": checking" + about + " ...");
        run();
      }
    } catch (const OutOfMemory& error) {
      checked.verdict.why = error.what();
      checked.out_of_memory = true;
      checked.extra_bytes = error.peak;
    } catch (const std::exception& error) {
      checked.verdict.why = one_line(error.what());
    }
    return checked;
  }

  /// The stage that the pass of `stage` is measured against; nullptr where there is none.
  const Stage* before(const Stage& stage) const {
    if (backward_) return backward_before(stage);
    return stage.before == stage.number ? nullptr : &on_backend(find_stage(stage.before), stage.backend);
  }

  /// `stage`, which has passed, against another that has.
  Verdict against(const Stage& stage, const Stage& other) {
    const Checked &mine = check(stage), &its = check(other);
    const Right &right = right_for(stage), &its_right = right_for(other);
    return backward_
               ? check_backward_against(mine.gradients, right.gradients, its.gradients, its_right.gradients)
               : check_against(mine.result, right.forward, its.result, its_right.forward);
  }

  /// Calls `use` with the pass of `stage`, ready to run.
  template <class Use>
  void with_run(const Stage& stage, Use use) {
    if (backward_) {
      BackwardRun run(stage, inputs_, saved_, dO_);
      use(run);
    } else {
      ForwardRun run(stage, inputs_);
      use(run);
    }
  }

 private:
  /// What is right in a dtype.
  struct Right {
    Expected forward;  ///< Of a sample: bounds alone.
    ExpectedSample sample;
    ExpectedGradients gradients;
  };

  const Right& right_for(const Stage& stage) {
    const Dtype dtype = computing_dtype(stage, inputs_.problem.dtype);
    auto& slot = right_[dtype];
    if (!slot) {
      slot = std::make_unique<Right>();
      if (!sample_.empty()) {
        std::vector<Expected> expected;
        for (const Chunk& chunk : sample_) {
          progress_.repetition(fmt::format("the fp64 oracle of a sample of rows: part {} of {} ...",
                                           expected.size() + 1, sample_.size()));
          expected.push_back(expect_forward(chunk.inputs, dtype));
        }
        slot->sample = expect_sample(inputs_.problem, sample_, std::move(expected));
        slot->forward = slot->sample.all;
        return *slot;
      }
      progress_.step(fmt::format("computing the fp64 oracle for {}{} ...", to_string(inputs_.problem),
                                 seconds_for_all_ > 5 ? ", about " + duration_text(seconds_for_all_) : ""));
      if (backward_) {
        slot->gradients = expect_backward(inputs_, saved_, dO_, dtype);
      } else {
        slot->forward = expect_forward(inputs_, dtype);
      }
    }
    return *slot;
  }

  const Inputs& inputs_;
  bool backward_;
  Progress& progress_;
  double seconds_for_all_ = 0;  ///< How long that takes, about.
  std::vector<Chunk> sample_;
  std::vector<float> dO_;
  Result<float> saved_;  ///< O and L, which a backward pass is given.
  std::map<Dtype, std::unique_ptr<Right>> right_;
  std::map<int, Checked> checked_;
};

Climbed climb_stage(const Stage& stage, Checker& checker, Progress& progress) {
  Climbed climbed;
  climbed.stage = &stage;
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

/// Whether its numbers are of a comparison. Where a plain computation is exact, a right one is off by 0 of
/// 0.
bool was_compared(const Verdict& verdict) {
  return verdict.passed || verdict.allowed > 0 || verdict.error != 0;  // NaN too
}

/// An error, or what is allowed; nothing where no comparison came so far.
std::string known(const Verdict& verdict, double value) {
  return was_compared(verdict) ? fmt::format("{:.1e}", value) : "";
}

std::string times_text(double ratio) {
  return ratio < 100 ? fmt::format("{:.2f}x", ratio) : grouped(std::llround(ratio)) + "x";
}

/// Median and spread; a GPU's times are often below a millisecond.
std::string ms_text(const Climbed& one) {
  return fmt::format("{:.{}f} ± {:.{}f}", one.median(), one.median() >= 1 ? 2 : 3, one.spread(),
                     one.median() >= 1 ? 2 : 3);
}

/// The table with its second column, the idea, as wide as there is room: in several lines where it has to
/// be, and left out where it would be narrower than a few words.
std::string with_ideas(std::vector<std::vector<std::string>> rows, std::size_t width) {
  constexpr std::size_t few_words = 20;
  std::vector<std::vector<std::string>> without = rows;
  for (auto& row : without) row.erase(row.begin() + 1);
  const std::string narrow = render_table(without, 1);
  std::string wide = render_table(rows, 2);
  const auto width_of_line = [](const std::string& text) {  // below the titles
    return text.find('\n', text.find('\n') + 1) - text.find('\n') - 1;
  };
  if (width == 0 || width_of_line(wide) <= width) return wide;
  if (width_of_line(narrow) + 2 + few_words > width) return fit_table(without, 1, width);
  std::vector<std::vector<std::string>> wrapped;
  for (auto& row : rows) {
    const std::vector<std::string> idea = wrap(row[1], width - width_of_line(narrow) - 2, "");
    row[1] = idea[0];
    wrapped.push_back(row);
    for (std::size_t i = 1; i < idea.size(); ++i) {
      wrapped.emplace_back(row.size());
      wrapped.back()[1] = idea[i];
    }
  }
  return render_table(wrapped, 2);
}

std::string table(const std::vector<Climbed>& all) {
  const auto first = std::ranges::find_if(all, &Climbed::timed);
  std::vector<std::vector<std::string>> rows = {
      {"stage", "idea", "error", "allowed", "extra memory", "time (ms)", "vs before", "vs first"}};
  for (const Climbed& one : all) {
    std::vector<std::string> row = {label(*one.stage), std::string(one.stage->idea)};
    if (one.status == "out of memory") {
      row.insert(row.end(), {"", "", bytes_text(one.extra_bytes), "out of memory", "", ""});
    } else {
      row.insert(row.end(), {known(one.oracle, one.oracle.error), known(one.oracle, one.oracle.allowed)});
      if (!one.passed()) {
        row.insert(row.end(), {"", one.status == "failed" ? "FAILED" : "NOT JUDGED", "", ""});
      } else if (!one.timed()) {
        row.insert(row.end(), {bytes_text(one.extra_bytes), "emulated", "", ""});
      } else {
        const auto before = std::ranges::find_if(
            all, [&](const Climbed& x) { return x.timed() && x.stage == one.yardstick; });
        row.insert(row.end(), {bytes_text(one.extra_bytes), ms_text(one),
                               before == all.end() ? "" : times_text(before->median() / one.median()),
                               times_text(first->median() / one.median())});
      }
    }
    rows.push_back(row);
  }
  std::string text = with_ideas(rows, terminal_width());
  for (const Climbed& one : all) {
    if (!one.passed()) {
      const std::string status =
          one.status == "cannot be judged" ? "" : one.status + ": ";  // `why` says it
      text += fit(fmt::format("{}: {}{}\n", label(*one.stage), status, one.why));
    }
    if (one.disturbed) {
      text += fit(
          fmt::format("{}: other programs took its cores while it was timed: its time may be too high\n",
                      label(*one.stage)));
    }
  }
  return text;
}

/// What stages of kernels move and compute; "" where there are none that passed.
std::string ledger_table(const std::vector<Climbed>& all) {
  std::vector<std::vector<std::string>> rows = {{"stage"}};
  for (const LedgerSummary::Field& field : LedgerSummary::fields()) rows[0].emplace_back(field.title);
  std::string emulated;
  for (const Climbed& one : all) {
    if (!one.counted()) continue;
    if (one.emulated()) emulated += (emulated.empty() ? "" : ", ") + label(*one.stage).substr(0, 2);
    std::vector<std::string>& row = rows.emplace_back(1, label(*one.stage));
    for (const LedgerSummary::Field& field : LedgerSummary::fields()) {
      const std::int64_t count = one.ledger.*field.member;
      row.push_back(field.bytes ? bytes_text(count) : short_text(count));
    }
  }
  if (rows.size() == 1) return "";
  std::string text = "\n";
  if (!emulated.empty()) {
    text += fmt::format(
        "Emulated on the CPU: {}. How long that takes says nothing of a GPU; what they show is\n"
        "counts, exact and the same on every machine:\n\n",
        emulated);
  } else {
    text += "What the kernels move and compute, counted exactly by the emulator from the same source:\n\n";
  }
  return fit(text) + fit_table(rows, 1, terminal_width()) +
         fit("bytes as issued, before any cache; non-matmul ops: add, mul, div, max, exp, log; "
             "./ladder ledger shows all counts\n");
}

Json verdict_json(const Verdict& verdict) {
  const bool compared = was_compared(verdict);
  return {{"passed", verdict.passed},
          {"error", compared ? Json(verdict.error) : Json()},
          {"allowed", compared ? Json(verdict.allowed) : Json()},
          {"why", verdict.why}};
}

Json stage_json(const Climbed& one) {
  Json json = {{"number", one.stage->number},
               {"name", one.stage->name},
               {"title", one.stage->title},
               {"idea", one.stage->idea},
               {"before", (one.yardstick != nullptr ? one.yardstick : one.stage)->number},
               {"backend", to_string(one.stage->backend)},
               {"status", one.status},
               {"why", one.why},
               {"extra_bytes", one.extra_bytes},
               {"oracle", verdict_json(one.oracle)}};
  if (one.compared != nullptr) json["against_before"] = verdict_json(one.before);
  if (one.counted()) {
    for (const LedgerSummary::Field& field : LedgerSummary::fields())
      json["ledger"][field.key] = one.ledger.*field.member;
  }
  if (one.timed()) {
    json["time_ms"] = {{"median", one.median()},
                       {"lower_quartile", quantile(one.ms, 0.25)},
                       {"upper_quartile", quantile(one.ms, 0.75)},
                       {"runs", one.ms.size()},
                       {"disturbed", one.disturbed}};
  }
  return json;
}

/// The longest N that --memory emulates, which takes 16 times as long for every fourfold N.
constexpr std::int64_t emulated_memory_up_to = 4096;

/// The longest N of --memory for backward passes: what they are given of the forward pass is computed
/// plainly.
constexpr std::int64_t backward_memory_up_to = 4096;

/// The peak extra memory of each stage over N, from real runs of one causal head (the mask halves the time,
/// not the memory). A stage that does not fit ends its line: longer sequences would not fit either.
Json measure_memory(const std::vector<const Stage*>& chosen, std::int64_t d, Dtype dtype,
                    std::int64_t up_to, bool backward, Progress& progress) {
  Json lines = Json::array();
  for (const Stage* stage : chosen) {
    Json points = Json::array();
    const bool emulated = stage->backend == Backend::emulator;
    for (std::int64_t N = 1024; N <= (emulated ? std::min(up_to, emulated_memory_up_to) : up_to); N *= 2) {
      Problem problem;
      problem.Nq = problem.Nk = N;
      problem.d = d;
      problem.dtype = dtype;
      problem.causal = true;
      progress.step(fmt::format("{}: extra memory at N = {} ...", label(*stage), N));
      const Inputs inputs = random_inputs(problem, 1);
      Workspace workspace(free_memory(stage->backend));
      try {
        Checker(inputs, backward, progress).with_run(*stage, [&](auto& run) { run.run(workspace); });
        points.push_back({{"N", N}, {"bytes", workspace.peak_bytes()}});
      } catch (const OutOfMemory& error) {
        points.push_back({{"N", N}, {"bytes", error.peak}, {"out_of_memory", true}});
        break;
      }
    }
    lines.push_back({{"number", stage->number}, {"name", stage->name}, {"points", points}});
  }
  return {{"d", d}, {"batch", 1}, {"heads", 1}, {"stages", lines}};
}

std::string memory_table(const Json& memory) {
  std::vector<std::vector<std::string>> rows = {{"extra memory", "N ="}};
  std::size_t most = 0;
  for (const Json& line : memory["stages"]) most = std::max(most, line["points"].size());
  for (std::size_t i = 0; i < most; ++i) rows[0].push_back(fmt::format("{}", 1024 << i));
  for (const Json& line : memory["stages"]) {
    std::vector<std::string> row = {label(find_stage(line["number"])), ""};
    for (const Json& point : line["points"]) {
      row.push_back(point.contains("out_of_memory")
                        ? fmt::format("out of memory ({})", bytes_text(point["bytes"]))
                        : bytes_text(point["bytes"]));
    }
    row.resize(rows[0].size());
    rows.push_back(row);
  }
  return fit_table(rows, 1, terminal_width());
}

int threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

Json machine_json() {
  return {{"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads", threads()},
          {"compiler", FLASHLADDER_COMPILER},
          {"build", FLASHLADDER_BUILD_TYPE},
          {"commit", commit()}};
}

std::int64_t rows_of(const std::vector<Chunk>& sample) {
  std::int64_t rows = 0;
  for (const Chunk& chunk : sample) rows += chunk.inputs.problem.Nq;
  return rows;
}

/// Makes the folder and proves that files can be written there, before anything long is run.
void prepare_output(const fs::path& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) {
    throw Error(fmt::format("cannot write into the folder {} ({}): name another with --out", out.string(),
                            error.message()));
  }
  for (const char* name : {"climb.json", "report.html"}) {
    if (fs::is_directory(out / name)) {
      throw Error(fmt::format("{} is a folder: remove it, or name another folder with --out",
                              (out / name).string()));
    }
    try {
      require_writable(out / name);
    } catch (const Error& why) {
      throw Error(fmt::format("cannot write into the folder {} ({}): name another with --out", out.string(),
                              why.what()));
    }
    if (fs::exists(out / name)) say("{} exists and will be replaced\n", (out / name).string());
  }
}

/// Draws report.html with the Python that ./ladder chose, which puts it in its place when it is complete.
/// Returns its exit status, -1 where there is no Python. To be called
/// while a Uninterrupted lives: an interrupt ends the drawing.
int draw_report(const fs::path& json, const fs::path& html) {
  const char* chosen = std::getenv("FLASHLADDER_PYTHON");
  // A module of the repository, from wherever the caller is, whose own modules are not taken for Python's.
  setenv("PYTHONPATH", FLASHLADDER_SOURCE_DIR, 1);
  setenv("PYTHONSAFEPATH", "yes", 1);
  std::string arguments[] = {chosen != nullptr ? chosen : "python3",
                             "-m",
                             "bench.report.climb",
                             json.string(),
                             "--out",
                             html.string()};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // Ctrl-C goes to Python too, which would show where it was: it is told to end by another signal.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  posix_spawnattr_setsigmask(&how, &blocked);
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK);
  pid_t child;
  const int failed = posix_spawnp(&child, argv[0], nullptr, &how, argv.data(), environ);
  posix_spawnattr_destroy(&how);
  if (failed != 0) return -1;
  int status = 0;
  for (bool told = false;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended == -1) return -1;
    if (Uninterrupted::interrupted() && !told) {
      told = true;
      kill(child, SIGTERM);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int climb(const ClimbOptions& options) {
  if (!(options.patience >= 0))  // NaN is no number of seconds either
    throw UsageError(fmt::format("--judge-within {}: give seconds, 0 or more", options.patience));
  if (options.backend == "cuda") {
    if (const std::string why = unavailable(Backend::cuda); !why.empty()) throw Error(why);
  }
  const Backend backend = options.backend == "auto"   ? best_backend()
                          : options.backend == "cuda" ? Backend::cuda
                                                      : Backend::emulator;
  const LoadedInputs loaded = load_inputs(options.input);
  const Inputs& inputs = loaded.inputs;
  const Problem& problem = inputs.problem;
  std::vector<const Stage*> chosen;
  std::map<std::string, std::vector<const Stage*>> left_out;  // by what they do not take
  for (const Stage* stage : options.stages.empty() ? std::vector(stages().begin(), stages().end())
                                                   : select_stages(joined(options.stages, ","))) {
    if (options.backward ? stage->backward == nullptr : stage->forward == nullptr) {
      if (options.stages.empty()) continue;
      throw UsageError(fmt::format("stage {} has no {} pass: {} --backward, or choose other stages",
                                   label(*stage), options.backward ? "backward" : "forward",
                                   options.backward ? "leave out" : "add"));
    }
    const Dtype dtype = computing_dtype(*stage, problem.dtype);
    if (!options.stages.empty()) {
      if (!stage->supports.dtype(dtype))
        throw UsageError(fmt::format("stage {} does not take {}: add --dtype {}", label(*stage),
                                     to_string(dtype), to_string(stage->supports.dtypes[0])));
      require_supported(*stage, problem);
    }
    if (!stage->supports.dtype(dtype)) {
      left_out[std::string(to_string(dtype))].push_back(stage);
    } else if (!stage->supports.head_dim(problem.d)) {
      left_out[fmt::format("head dimension {}", problem.d)].push_back(stage);
    } else {
      chosen.push_back(&on_backend(*stage, backend));
    }
  }
  const fs::path out = options.out;
  prepare_output(out);

  say("{}: {}{}\n", loaded.source, to_string(problem), options.backward ? ", backward pass" : "");
  Json machine = machine_json();
  if (backend == Backend::cuda) machine["gpu"] = gpu_name();
  say("{}, {} thread{}{}; times are medians ± half the interquartile range\n\n",
      std::string(machine["cpu"]), threads(), threads() == 1 ? "" : "s",
      backend == Backend::cuda ? ", " + gpu_name() : "");
  for (const auto& [what, without] : left_out) {
    std::string names;
    for (const Stage* stage : without) names += (names.empty() ? "" : ", ") + label(*stage).substr(0, 2);
    say("left out, because they do not take {}: stages {} (./ladder list says what each takes)\n", what,
        names);
  }
  if (!left_out.empty()) say("\n");

  Json report = {{"format", 1},
                 {"date", fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr)))},
                 {"machine", machine},
                 {"input", to_json(loaded)}};
  if (options.backward) report["pass"] = "backward";
  for (const Stage* stage : stages()) {
    for (const auto& [what, without] : left_out) {
      if (std::ranges::find(without, stage) != without.end())
        report["left_out"].push_back({{"number", stage->number}, {"name", stage->name}, {"why", what}});
    }
  }
  std::vector<Climbed> all;
  std::string sampled;  // what is to be said of a sample
  {
    Progress progress;
    Checker checker(inputs, options.backward, progress, options.patience);
    if (!checker.sample().empty()) {
      const std::int64_t judged = rows_of(checker.sample());
      const std::int64_t rows = problem.batch * problem.q_heads * problem.Nq;
      report["sample"] = {
          {"judged_rows", judged}, {"rows", rows}, {"seconds_for_all", checker.seconds_for_all()}};
      sampled = fmt::format(
          "Judged: a sample of {} of the {} rows, since the fp64 oracle of all would take about {}. The "
          "others must be numbers, and are compared with the stage before.\n",
          grouped(judged), grouped(rows), duration_text(checker.seconds_for_all()));
      progress.step(sampled.substr(0, sampled.size() - 1));
    }
    for (const Stage* stage : chosen) all.push_back(climb_stage(*stage, checker, progress));
  }
  report["stages"] = Json::array();
  for (const Climbed& one : all) report["stages"].push_back(stage_json(one));
  print("{}{}{}", table(all), fit(sampled), ledger_table(all));
  // Before the memory is measured, which takes long and much memory: what is known must not be lost.
  write_file(out / "climb.json", json_text(report));
  if (options.memory) {
    const std::int64_t up_to =
        options.backward ? std::min(options.memory_up_to, backward_memory_up_to) : options.memory_up_to;
    {
      Progress progress;
      report["memory"] =
          measure_memory(chosen, problem.d, problem.dtype, up_to, options.backward, progress);
    }
    print("\n{}", memory_table(report["memory"]));
    if (up_to < options.memory_up_to)
      say("backward passes up to N = {}: what they are given would take minutes to compute\n", up_to);
    if (up_to > emulated_memory_up_to &&
        std::ranges::any_of(chosen, [](const Stage* s) { return s->backend == Backend::emulator; })) {
      say("emulated stages up to N = {}, which takes seconds: further on it would be minutes\n",
          emulated_memory_up_to);
    }
    write_file(out / "climb.json", json_text(report));
  }
  say("\nwrote {}\n", (out / "climb.json").string());
  bool good = std::ranges::none_of(
      all, [](const Climbed& one) { return one.status == "failed" || one.status == "cannot be judged"; });
  const fs::path html = out / "report.html";
  const Uninterrupted whole;  // an interrupt ends the drawing, and this program when it has said so
  if (const int status = draw_report(out / "climb.json", html); status == 0) {
    say("wrote {} (open it in a browser)\n", html.string());
  } else {
    complain("{}ladder: the report was not drawn{}\n", Uninterrupted::interrupted() ? "\n" : "",
             Uninterrupted::interrupted() ? ": interrupted"
             : status == -1               ? ": there is no Python: ./ladder setup makes one in .venv"
                                          : ", the line above says why");
    // One of an earlier climb is not lost, but must not pass for one of the new numbers.
    if (std::error_code error; fs::exists(html)) {
      const fs::path old = out / "report.old.html";
      fs::rename(html, old, error);
      if (!error) complain("ladder: the report of an earlier climb is {} now\n", old.string());
    }
    good = false;
  }
  return good ? 0 : 1;
}

}  // namespace flashladder
