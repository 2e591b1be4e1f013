#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/check/run.hpp"
#include "common/cli/input.hpp"
#include "common/cli/lab.hpp"
#include "common/cli/ledger.hpp"
#include "common/error.hpp"
#include "common/io/terminal.hpp"
#include "common/io/whole_file.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/program.hpp"

namespace flashladder::lab {
namespace {

using Json = nlohmann::ordered_json;

/// What came of a run, as `ledger --json --trace` has it of a stage.
Json to_json(const Lab& lab, const LoadedInputs& loaded, const Job& job, const Answers& answers) {
  const Report nothing;
  const Report& report = answers.reports.empty() ? nothing : answers.reports.front();
  Json counts = Json::object();
  for (const auto& [name, count] : report.ledger.counted()) counts[name] = count;
  Json stage = {{"number", lab.stage->number},
                {"name", lab.stage->name},
                {"dtype", to_string(job.inputs.problem.dtype)},
                {"counts", std::move(counts)}};
  if (!report.trace.empty()) stage["trace"] = place_of(0);
  Json json = {{"format", 1}, {"input", flashladder::to_json(loaded)}, {"backend", "emulator"}};
  if (job.pass == Pass::backward) json["pass"] = to_string(job.pass);
  json["file"] = lab.file;
  json["error"] = answers.ended.empty() ? report.what : answers.ended;
  json["stages"] = Json::array({std::move(stage)});
  return json;
}

}  // namespace

int trace_lab(const TraceOptions& options) {
  const Uninterrupted whole;  // an interrupt ends what runs, and leaves nothing behind
  const Submission submission = read_folder(options.folder);
  const Stage& stage = *submission.lab.stage;
  if (stage.backend == Backend::cpu)
    throw UsageError(
        fmt::format("lab {} is C++ for the CPU, and no emulator sees what it does", label(stage)));
  const LoadedInputs loaded = load_or_default(options.input);
  const Inputs inputs = for_stage(stage, loaded.inputs);
  require_supported(stage, inputs.problem);
  const int row = traced_row(options.row, loaded.inputs.problem);
  const TemporaryFolder folder;
  const Program program(stage, submission.lab.file, submission.text, folder.path(),
                        {.seconds = usual_seconds, .memory = std::int64_t{usual_mebibytes} << 20});
  const Compiled& compiled = program.compiled();
  if (!compiled.refused.empty())
    throw UsageError(fmt::format("{} is not accepted: {}", submission.path, compiled.refused));
  if (!compiled.ok)
    throw UsageError(fmt::format("{} does not compile: {}", submission.path, compiled.error));
  Job job = job_on(stage, inputs, options.input.seed.value_or(1));
  job.check = true;
  job.traced_row = row;
  const Answers answers = program.run({job});
  const std::string trace = answers.reports.empty() ? "" : answers.reports.front().trace;
  print("{}", json_text(to_json(submission.lab, loaded, job, answers), {trace}));
  return 0;
}

}  // namespace flashladder::lab
