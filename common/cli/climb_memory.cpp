#include "common/cli/climb_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/cli/climb_check.hpp"

namespace flashladder {

using Json = nlohmann::ordered_json;

Json measure_memory(const std::vector<const Stage*>& chosen, std::int64_t d, Dtype dtype,
                    std::int64_t up_to, Pass pass, Progress& progress) {
  Json lines = Json::array();
  for (const Stage* stage : chosen) {
    Json points = Json::array();
    const bool emulated = stage->backend == Backend::emulator;
    for (std::int64_t N = 1024; N <= (emulated ? std::min(up_to, emulated_memory_up_to) : up_to); N *= 2) {
      Problem problem;
      problem.Nq = problem.Nk = N;
      problem.d = d;
      problem.dtype = given_dtype(*stage, dtype);
      problem.causal = true;
      progress.step(fmt::format("{}: extra memory at N = {} ...", label(*stage), N));
      const Inputs inputs = random_inputs(problem, 1);
      Workspace workspace(free_memory(stage->backend));
      try {
        Checker(inputs, pass, progress).with_run(*stage, [&](auto& run) { run.run(workspace); });
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

}  // namespace flashladder
