#include "common/cli/lab.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/cli/input.hpp"
#include "common/error.hpp"
#include "common/io/terminal.hpp"
#include "common/io/whole_file.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/grade.hpp"
#include "common/labs/readme.hpp"
#include "common/labs/speed.hpp"
#include "common/labs/text.hpp"

namespace flashladder::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const Stage& the_stage(const std::string& selection) {
  const std::vector<const Stage*> chosen = select_stages(selection);
  if (chosen.size() != 1)
    throw UsageError(fmt::format("'{}' is more than one stage: name one, such as 13", selection));
  return *chosen[0];
}

// --- what grade prints

void print_grade(const Submission& submission, const Grade& grade, const Speed& speed,
                 const std::string& folder, const std::string& log_path) {
  const std::size_t width =
      terminal_width() == 0 ? 110 : std::clamp<std::size_t>(terminal_width(), 40, 120);
  const auto row = [&](const std::string& title, int points, int most) {
    const std::vector<std::string> lines = wrap(title, width - 12, "    ");
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) print("{}\n", lines[i]);
    print("{:<{}}{:>4} of {:>3}\n", lines.back(), width - 12, points, most);
  };
  say("Lab {}: {}, seed {:016x}\n", label(*submission.lab.stage), submission.path, grade.seed);
  if (!grade.refused.empty()) {
    print("\nIt is not accepted:\n{}The rules are in docs/labs.md.\n\n",
          wrapped(grade.refused, "      ", width));
    row("in all", 0, grade.most());
    return;
  }
  if (!grade.compile_error.empty()) {
    say("\nIt does not compile: {}\nAll that the compiler says: {}\n\n", grade.compile_error, log_path);
    row("in all", 0, grade.most());
    return;
  }
  if (grade.warnings > 0)
    say("The compiler warns of {} place{}: {}\n", grade.warnings, grade.warnings == 1 ? "" : "s", log_path);
  for (const Part& part : grade.parts) {
    print("\n");
    row(part.title, part.points(), part.most());
    for (std::size_t i = 0; i < part.items.size(); ++i) {
      const Item& item = part.items[i];
      row("  " + item.title, item.points, item.most);
      // What several items are told is told once, behind the last of them.
      const bool told_next = i + 1 < part.items.size() && part.items[i + 1].feedback == item.feedback;
      if (!told_next && !item.feedback.empty()) print("{}", wrapped(item.feedback, "      ", width));
    }
  }
  if (!grade.printed.empty()) print("\nIt printed:\n{}\n", wrapped(grade.printed, "      ", width));
  print("\n");
  row("in all", grade.points(), grade.most());
  if (submission.lab.stage->backend != Backend::cpu)
    say("\nPlay what it does, tile by tile: ./ladder watch {}\n", shell_word(folder));
  print("\n{}", wrapped(words_of(speed), "", width));
}

Json to_json(const Speed& speed) {
  if (!speed.missing.empty()) return nullptr;
  return {{"gpu", speed.gpu},
          {"ms", speed.ms},
          {"reference_ms", speed.reference_ms},
          {"ratio", speed.ratio()},
          {"shape", speed.shape}};
}

Json to_json(const Submission& submission, const Grader& grader, const Grade& grade, const Speed& speed) {
  Json json = {{"format", 1},
               {"ladder", {{"version", FLASHLADDER_VERSION}, {"lab", version_of(submission.lab)}}},
               {"stage", submission.lab.stage->number},
               {"name", submission.lab.stage->name},
               {"file", submission.lab.file},
               {"hash", fmt::format("{:016x}", hash_of(submission.text))},
               {"seed", fmt::format("{:016x}", grade.seed)},
               {"points", grade.points()},
               {"most", grade.most()},
               {"refused", grade.refused},
               {"compile_error", grade.compile_error},
               {"warnings", grade.warnings},
               {"printed", grade.printed},
               {"speed", to_json(speed)},
               {"speed_missing", speed.missing}};
  json["parts"] = Json::array();
  for (const Part& part : grade.parts) {
    Json items = Json::array();
    for (const Item& item : part.items) {
      items.push_back({{"name", item.name},
                       {"title", item.title},
                       {"points", item.points},
                       {"most", item.most},
                       {"reached", item.reached},
                       {"feedback", item.feedback}});
    }
    json["parts"].push_back({{"name", part.name},
                             {"title", part.title},
                             {"points", part.points()},
                             {"most", part.most()},
                             {"items", items}});
  }
  json["cases"] = Json::array();
  for (const Job& job : grader.counted_cases()) json["cases"].push_back(words_of(job));
  json["counts"] = Json::array();
  for (std::size_t c = 0; c < grade.counts.size(); ++c) {
    const Counter& counter = grader.counters()[c];
    Json claimed = Json::array();
    for (const Job& job : grader.counted_cases()) claimed.push_back(counter.claimed(job));
    json["counts"].push_back({{"counter", counter.name},
                              {"closed_form", counter.form},
                              {"rule", sign_of(counter.rule)},
                              {"idea", counter.idea},
                              {"reached", grade.counts[c].reached},
                              {"claimed", claimed},
                              {"counted", grade.counts[c].counted}});
  }
  return json;
}

/// Keeps what the compiler said beside the file, and says where.
std::string keep_log(const fs::path& folder, const std::string& log) {
  const fs::path path = folder / "compile.log";
  try {
    write_file(path, log);
    return path.string();
  } catch (const Error&) {
    return "(not kept: the folder cannot be written to)";
  }
}

int grade_folder(const GradeOptions& options) {
  const Uninterrupted whole;  // an interrupt ends what runs, and leaves nothing behind
  const Submission submission = read_folder(options.folder);
  if (!options.json.empty() && options.json != "-") {
    for (const fs::path& own : {fs::path(submission.path), fs::path(options.folder) / lab_file}) {
      if (std::error_code error; fs::equivalent(options.json, own, error))
        throw UsageError(
            fmt::format("--json {} would take the place of that file: name another", options.json));
    }
    require_writable(options.json);
  }
  const GradeSettings settings{
      options.seed, {.seconds = options.seconds, .memory = std::int64_t{options.mebibytes} << 20}};
  const Grader grader(submission.lab);
  Grade result;
  Speed speed;
  {
    Progress progress;
    progress.step(fmt::format("{}: compiling and running ...", submission.path));
    result = grader.grade(submission.text, settings);
    progress.step(fmt::format("{}: speed ...", submission.path));
    speed = speed_of(submission.lab, submission.text, result, settings.limits);
  }
  const std::string json = json_text(to_json(submission, grader, result, speed));
  if (options.json == "-") {
    print("{}", json);
  } else {
    print_grade(submission, result, speed, options.folder,
                result.log.empty() ? "" : keep_log(options.folder, result.log));
    if (!options.json.empty()) write_file(options.json, json);
  }
  return result.points() == result.most() ? 0 : 1;
}

}  // namespace

void no_verb(const std::vector<std::string>& words) {
  if (words.empty()) {
    throw UsageError(
        "lab needs a verb: ./ladder lab list shows the labs, ./ladder lab new 01 my_lab begins one, and "
        "./ladder lab grade my_lab grades what you wrote there");
  }
  const std::string& word = words[0];
  if (fs::is_directory(word))
    throw UsageError(
        fmt::format("lab needs a verb: ./ladder lab grade {} grades that folder", shell_word(word)));
  const Stage* stage = nullptr;
  try {
    stage = find_lab(the_stage(word)).stage;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format(
        "lab has the verbs list, new, grade and check, and not '{}'; as a stage: {}", word, error.what()));
  }
  throw UsageError(fmt::format("lab needs a verb: ./ladder lab new {} {} begins the lab of stage {}",
                               number_text(*stage), words.size() > 1 ? shell_word(words[1]) : "my_lab",
                               label(*stage)));
}

int list_labs() {
  for (const Stage* stage : stages()) {
    if (!has_lab(*stage)) continue;
    const Lab lab = find_lab(*stage);
    say("{:<28}{:>3} lines to write, {} place{}: {}\n", label(*stage), lab.source.lines(),
        lab.source.regions.size(), lab.source.regions.size() == 1 ? "" : "s", stage->idea);
  }
  return 0;
}

int make_lab(const NewOptions& options) {
  const Lab lab = find_lab(the_stage(options.stage));
  write_folder(lab, readme_of(lab), options.folder);
  print("{} is lab {}: read README.md there, edit {}, and grade it with ./ladder lab grade {}\n",
        options.folder, label(*lab.stage), lab.file, shell_word(options.folder));
  return 0;
}

int grade_lab(const GradeOptions& options) {
  try {
    return grade_folder(options);
  } catch (const std::bad_alloc&) {
    throw UsageError("the grader has no memory left: nothing was graded");
  } catch (const std::exception& error) {
    throw UsageError(error.what());  // nothing was graded: not the same as a bad grade
  }
}

}  // namespace flashladder::lab
