#include "common/cli/climb.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "common/cli/climb_files.hpp"
#include "common/cli/climb_memory.hpp"
#include "common/cli/climb_table.hpp"
#include "common/cli/climb_time.hpp"
#include "common/cli/machine.hpp"
#include "common/io/whole_file.hpp"

namespace flashladder {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

/// Every stage of a climb under one mask.
struct MaskClimb {
  std::string name;   ///< In climb.json.
  std::string title;  ///< Of its tables.
  bool causal;
  std::vector<Climbed> all = {};
};

std::vector<MaskClimb> masks_of(const ClimbOptions& options) {
  std::vector<MaskClimb> masks;
  if (options.full || !options.input.causal) masks.push_back({"full", "Without a mask", false});
  if (options.input.causal || !options.full) masks.push_back({"causal", "With the causal mask", true});
  return masks;
}

Json numbers_json(const std::vector<const Stage*>& some) {
  Json numbers = Json::array();
  for (const Stage* stage : some) numbers.push_back(stage->number);
  return numbers;
}

/// The stages to run, as compiled for `backend`; in `report` which are left out and why.
std::vector<const Stage*> chosen_stages(const ClimbOptions& options, const Problem& problem,
                                        Backend backend, Json& report) {
  std::vector<const Stage*> chosen;
  std::map<std::string, std::vector<const Stage*>> left_out;  // by why
  for (const Stage* stage : options.stages.empty() ? std::vector(stages().begin(), stages().end())
                                                   : select_stages(joined(options.stages, ","))) {
    if (!stage->has(options.pass)) {
      if (options.stages.empty()) continue;
      throw UsageError(fmt::format("stage {} has no {} pass: {} --backward, or choose other stages",
                                   label(*stage), to_string(options.pass),
                                   options.pass == Pass::backward ? "leave out" : "add"));
    }
    Problem given = problem;
    given.dtype = given_dtype(*stage, problem.dtype);
    if (!options.stages.empty()) require_supported(*stage, given);
    const std::string why = options.stages.empty() ? unavailable(*stage, backend) : "";
    if (!stage->supports.head_dim(problem.d)) {
      left_out[fmt::format("Head dimension {} is none that they take, which are {}", problem.d,
                           stage->supports.head_dims_in_words())]
          .push_back(stage);
    } else if (const std::string missing = stage->supports.missing(problem); !missing.empty()) {
      left_out["They take " + missing].push_back(stage);
    } else if (!why.empty()) {
      left_out["Each" + why.substr(fmt::format("stage {}", label(*stage)).size())].push_back(stage);
    } else {
      chosen.push_back(&on_backend(*stage, backend));
    }
  }
  for (const auto& [why, some] : left_out) {
    report["left_out"].push_back({{"stages", numbers_json(some)},
                                  {"why", fmt::format("Left out: {}. {}.", numbers_text(some), why)}});
  }
  return chosen;
}

/// The input as the chosen stages are given it, by dtype; in `report` for which it is rounded.
std::map<Dtype, Inputs> given_inputs(const ClimbOptions& options, const LoadedInputs& loaded,
                                     const std::vector<const Stage*>& chosen, Json& report) {
  const Dtype own = loaded.inputs.problem.dtype;
  std::map<Dtype, Inputs> given;
  std::map<Dtype, std::vector<const Stage*>> rounded;
  for (const Stage* stage : chosen) {
    const Dtype dtype = given_dtype(*stage, own);
    if (given.try_emplace(dtype, loaded.inputs).second && dtype != own)
      round_inputs(given.at(dtype), dtype, loaded.source, options.input.allow_nonfinite);
    if (dtype != own) rounded[dtype].push_back(stage);
  }
  for (const auto& [dtype, some] : rounded) {
    report["rounded"].push_back(
        {{"stages", numbers_json(some)},
         {"dtype", to_string(dtype)},
         {"why", fmt::format("Rounded to {0}: the input of {1}, which do not take {2}. The stage before is "
                             "run on the same rounded numbers where one of them is compared with it.",
                             to_string(dtype), numbers_text(some), to_string(own))}});
  }
  return given;
}

/// Seconds that the fp64 oracles of all rows take together, about: one for each dtype that stages are given
/// the input in and each that they, or the stages that they are compared with, compute in.
double seconds_of_oracles(const ClimbOptions& options, const std::vector<MaskClimb>& masks, Problem problem,
                          const std::vector<const Stage*>& chosen) {
  std::set<std::pair<Dtype, Dtype>> oracles;
  for (const Stage* stage : chosen) {
    const Dtype given = given_dtype(*stage, problem.dtype);
    oracles.emplace(given, computing_dtype(*stage, given));
    if (const Stage* before = Checker::before(*stage, options.pass); before != nullptr)
      oracles.emplace(given, computing_dtype(*before, given));
  }
  double seconds = 0;
  for (const MaskClimb& mask : masks) {
    problem.causal = mask.causal;
    seconds += static_cast<double>(oracles.size()) * oracle_seconds(problem, options.pass);
  }
  return seconds;
}

/// Runs all stages under one mask. @return how many rows of a sample were judged; 0 where all were.
std::int64_t climb_mask(MaskClimb& mask, std::map<Dtype, Inputs>& given,
                        const std::vector<const Stage*>& chosen, Dtype dtype, Pass pass, bool sampled,
                        Progress& progress) {
  std::map<Dtype, Checker> checkers;
  for (auto& [of, inputs] : given) {
    inputs.problem.causal = mask.causal;
    checkers.try_emplace(of, inputs, pass, progress, sampled);
  }
  for (const Stage* stage : chosen)
    mask.all.push_back(climb_stage(*stage, checkers.at(given_dtype(*stage, dtype)), progress));
  return checkers.empty() ? 0 : checkers.begin()->second.judged_rows();
}

/// The entries of climb.json, each with what came of the stage under every mask.
Json stages_json(const std::vector<MaskClimb>& masks) {
  Json entries = Json::array();
  for (std::size_t i = 0; i < masks[0].all.size(); ++i) {
    Json& entry = entries.emplace_back(stage_json(masks[0].all[i]));
    for (const MaskClimb& mask : masks) entry["masks"][mask.name] = result_json(mask.all[i]);
  }
  return entries;
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
  std::vector<MaskClimb> masks = masks_of(options);
  LoadedInputs loaded = load_inputs(options.input);
  loaded.inputs.problem.causal = masks.size() == 1 && masks[0].causal;
  const Problem& problem = loaded.inputs.problem;
  for (const MaskClimb& mask : masks) {  // a prefix needs the causal one
    Problem one = problem;
    one.causal = mask.causal;
    one.validate();
  }
  Json report = {{"format", 2},
                 {"date", fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr)))},
                 {"machine", {}},
                 {"input", to_json(loaded)}};
  report["input"].erase("causal");
  for (const MaskClimb& mask : masks) report["masks"].push_back(mask.name);
  if (options.pass == Pass::backward) report["pass"] = "backward";
  const std::vector<const Stage*> chosen = chosen_stages(options, problem, backend, report);
  std::map<Dtype, Inputs> given = given_inputs(options, loaded, chosen, report);
  const fs::path out = options.out;
  prepare_output(out);
  Json machine = machine_json();
  if (backend == Backend::cuda) machine["gpu"] = gpu_name();
  report["machine"] = machine;

  say("{}: {}{}{}\n", loaded.source, to_string(problem),
      masks.size() == 2 ? ", without a mask and causal" : "",
      options.pass == Pass::backward ? ", backward pass" : "");
  say("{}, {} thread{}{}; times are medians\n\n", std::string(machine["cpu"]), threads(),
      threads() == 1 ? "" : "s", backend == Backend::cuda ? ", " + gpu_name() : "");
  for (const char* kind : {"rounded", "left_out"}) {
    if (!report.contains(kind)) continue;
    for (const Json& one : report[kind]) say("{}\n", std::string(one["why"]));
  }
  if (report.contains("rounded") || report.contains("left_out")) say("\n");

  {
    Progress progress;
    const double seconds = seconds_of_oracles(options, masks, problem, chosen);
    const bool sampled = options.pass == Pass::forward && seconds > options.patience;
    if (sampled) {
      progress.step(
          fmt::format("Judged: a sample of the rows, since the fp64 oracle of all would take about {} ...",
                      duration_text(seconds)));
    } else if (seconds > 5) {
      progress.step(fmt::format("the fp64 oracle will take about {} in all ...", duration_text(seconds)));
    }
    std::int64_t judged = 0;
    for (MaskClimb& mask : masks)
      judged += climb_mask(mask, given, chosen, problem.dtype, options.pass, sampled, progress);
    if (sampled) {
      const std::int64_t rows =
          static_cast<std::int64_t>(masks.size()) * problem.batch * problem.q_heads * problem.Nq;
      report["sample"] = {
          {"judged_rows", judged},
          {"rows", rows},
          {"seconds_for_all", seconds},
          {"why", fmt::format("Judged: a sample of {} of the {} rows{}, since the fp64 oracle of all would "
                              "take about {}. The others must be numbers, and are compared with the stage "
                              "before.",
                              grouped(judged), grouped(rows), masks.size() == 2 ? " of both masks" : "",
                              duration_text(seconds))}};
    }
  }
  report["stages"] = stages_json(masks);
  for (const MaskClimb& mask : masks) {
    say("{}; gain: times as fast as the stage before:\n\n", mask.title);
    print("{}\n", climb_table(mask.all, &mask == &masks[0]));
  }
  if (report.contains("sample")) say("{}\n\n", std::string(report["sample"]["why"]));
  print("{}", counted_where(masks[0].all));
  for (const MaskClimb& mask : masks) print("{}", ledger_table(mask.title, mask.all));
  // Before the memory is measured, which takes long and much memory: what is known must not be lost.
  write_file(out / "climb.json", json_text(report));
  if (options.memory) {
    const std::int64_t up_to = options.pass == Pass::backward
                                   ? std::min(options.memory_up_to, backward_memory_up_to)
                                   : options.memory_up_to;
    {
      Progress progress;
      report["memory"] = measure_memory(chosen, problem.d, problem.dtype, up_to, options.pass, progress);
    }
    print("{}", memory_table(report["memory"]));
    if (up_to < options.memory_up_to)
      say("backward passes up to N = {}: what they are given would take minutes to compute\n", up_to);
    if (up_to > emulated_memory_up_to &&
        std::ranges::any_of(chosen, [](const Stage* s) { return s->backend == Backend::emulator; })) {
      say("emulated stages up to N = {}, which takes seconds: further on it would be minutes\n",
          emulated_memory_up_to);
    }
    write_file(out / "climb.json", json_text(report));
  }
  const Uninterrupted whole;  // an interrupt ends the drawing, and this program when it has said so
  say("wrote {}\n", (out / "climb.json").string());
  bool good = std::ranges::all_of(masks, [](const MaskClimb& mask) {
    return std::ranges::none_of(mask.all, [](const Climbed& one) {
      return one.status == "failed" || one.status == "cannot be judged";
    });
  });
  const fs::path html = out / "report.html";
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
