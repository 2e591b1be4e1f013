#include "common/cli/climb.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>

#include "common/cli/climb_files.hpp"
#include "common/cli/climb_memory.hpp"
#include "common/cli/climb_table.hpp"
#include "common/cli/climb_time.hpp"
#include "common/cli/machine.hpp"
#include "common/io/whole_file.hpp"

namespace flashladder {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

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
      const std::int64_t judged = checker.judged_rows();
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
  print("{}{}{}", climb_table(all), fit(sampled), ledger_table(all));
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
