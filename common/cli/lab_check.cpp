#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <sstream>

#include "common/cli/lab.hpp"
#include "common/error.hpp"
#include "common/io/terminal.hpp"
#include "common/io/whole_file.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/grade.hpp"
#include "common/labs/program.hpp"
#include "common/labs/rules.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace flashladder::lab {
namespace {

namespace fs = std::filesystem;

const fs::path sources = FLASHLADDER_SOURCE_DIR;

/// A wrong kernel of tests/mutants/, and what docs/checks.md says rejects it.
struct Mutant {
  std::string name;
  std::string text;     ///< The whole file.
  bool judged = false;  ///< Whether it says anything.
  bool by_checks = false, by_emulator = false;
};

/// The source with one patch applied, as tests/mutants/apply.cmake does it; "" where it does not apply.
std::string patched(const Lab& lab, const fs::path& patch) {
  const TemporaryFolder folder;
  const fs::path original = folder.path() / "original", result = folder.path() / lab.file;
  write_file(original, source_of(*lab.stage));
  const Ended ended =
      run_program({.command = {"patch", "--batch", "--forward", "--fuzz=0", "--output=" + result.string(),
                               "--reject-file=-", original.string(), patch.string()},
                   .folder = folder.path()});
  if (!ended.started) throw Error("there is no program 'patch', which makes the mutants: install it");
  return ended.status == 0 ? read_source(text_of(result), patch.string()).reference : "";
}

/// What rejects a mutant: the columns of its row in docs/checks.md.
void read_verdicts(Mutant& mutant) {
  std::istringstream page(text_of(sources / "docs/checks.md"));
  const std::string begin = "| `" + mutant.name + "` | ";
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with(begin)) continue;
    std::vector<std::string> cells;
    for (std::size_t at = 1, next; (next = line.find('|', at)) != line.npos; at = next + 1)
      cells.push_back(line.substr(at, next - at));
    const auto says = [&](int cell) { return cells[cell].find_first_not_of(' ') != std::string::npos; };
    mutant.judged = cells.size() == 5;  // mutant, mistake, checks, emulator, claim
    mutant.by_checks = mutant.judged && says(2);
    mutant.by_emulator = mutant.judged && says(3);
  }
}

/// The patches of a lab in a folder, by name; of `most` or more, so many of them, evenly spread.
std::vector<fs::path> patches_of(const Lab& lab, const char* folder, std::size_t most) {
  std::vector<fs::path> patches;
  const std::string number = number_text(*lab.stage) + "_";
  for (const auto& entry : fs::directory_iterator(sources / folder)) {
    const std::string name = entry.path().filename().string();
    if (graded_pass(*lab.stage) == Pass::forward && name.starts_with(number + "backward_")) continue;
    if (name.starts_with(number) && name.ends_with(".patch")) patches.push_back(entry.path());
  }
  std::ranges::sort(patches);
  std::vector<fs::path> some;
  most = std::min(most, patches.size());
  for (std::size_t i = 0; i < most; ++i) some.push_back(patches[i * patches.size() / most]);
  return some;
}

/// What a student may hand in: a file of tests/solutions/. Its outputs are right and its idea is undone, or
/// it is wrong.
struct Solution {
  std::string name;
  std::string text;                  ///< The whole file.
  bool idea = false, wrong = false;  ///< Of which kind it says that it is.
  std::vector<std::string> phrases;  ///< One of them in the feedback names its mistake.
};

std::string in_small_letters(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

Solution read_solution(const Lab& lab, const fs::path& patch) {
  Solution solution{patch.stem().string(), patched(lab, patch), false, false, {}};
  if (solution.text.empty()) throw Error(fmt::format("{} does not apply", patch.string()));
  std::istringstream lines(text_of(patch));
  const std::string phrases = "Named by: ";
  for (std::string line; std::getline(lines, line) && !line.starts_with("--- ");) {
    solution.idea = solution.idea || line == "Kind: idea";
    solution.wrong = solution.wrong || line == "Kind: wrong";
    if (!line.starts_with(phrases)) continue;
    line = in_small_letters(line.substr(phrases.size()));
    for (std::size_t at = 0, end = 0; end != line.npos; at = end + 3) {
      end = line.find(" | ", at);
      solution.phrases.push_back(line.substr(at, end - at));
    }
  }
  return solution;
}

bool names_mistake(const Grade& grade, const std::vector<std::string>& phrases) {
  std::string said = in_small_letters(grade.refused + grade.compile_error);
  for (const Part& part : grade.parts) {
    for (const Item& item : part.items) said += in_small_letters(item.feedback) + "\n";
  }
  return std::ranges::any_of(
      phrases, [&](const std::string& phrase) { return said.find(phrase) != std::string::npos; });
}

/// The stage before under this one's name; "" where it is on another backend, takes another dtype, needs
/// something else of the forward pass or has a launch aside or an include that this one has not, and so
/// could not be handed in. Of a variant it is plain attention, and so is the skeleton.
std::string stage_before(const Lab& lab) {
  const Stage* before = lab.before();
  if (before == nullptr || before->backend != lab.stage->backend || before->saved != lab.stage->saved ||
      !before->supports.dtype(lab.stage->supports.dtypes.front()))
    return "";
  std::string text = lab.source_before();
  const std::string old_name = fmt::format("stage_{}", number_text(*before));
  const std::string new_name = fmt::format("stage_{}", number_text(*lab.stage));
  for (std::size_t at = 0; (at = text.find(old_name, at)) != text.npos; at += new_name.size())
    text.replace(at, old_name.size(), new_name);
  return refused_source({*lab.stage, lab.file, text}).empty() ? text : "";
}

/// What could be handed in.
struct Sample {
  std::string name;
  std::string text;
  std::function<std::string(const Grade&)> wrong;  ///< What is wrong with its grade, or "".
  std::vector<std::string> phrases = {};           ///< As in Solution; empty where nothing is to be named.
  bool cheats = false;                             ///< Whether it is not to be accepted, or crashes.
  bool may_be_refused = false;                     ///< Whether its mistake may be where nothing may change.
  /// Whether a wrong output of the first cases, or right ones and a count that is not kept, is all that is
  /// asked of it, beside that its mistake is named.
  bool fails_by_outputs = false, fails_by_counts = false;
};

bool loses(const Grade& grade, std::string_view part) {
  return grade.part(part).points() < grade.part(part).most();
}
/// Then it loses the 20 points of the claim, and so cannot have more than 80.
bool loses_counts(const Grade& grade) {
  return loses(grade, "idea") || loses(grade, "claim");
}

std::string wrong_with_skeleton(const Grade& grade) {
  if (grade.part("idea").points() != 0) return "it has points on the idea";
  return loses(grade, "correct") ? "" : "it is correct: nothing is missing in it";
}
std::string wrong_with_reference(const Grade& grade) {
  return grade.points() == grade.most() ? "" : "it does not have full marks";
}
std::string wrong_with_stage_before(const Lab& lab, const Grade& grade) {
  if (grade.part("idea").points() != 0) return "it has points on the idea";
  // One that takes fewer head dimensions is right on its own only.
  if (!std::ranges::equal(lab.before()->supports.head_dims, lab.stage->supports.head_dims)) return "";
  return loses(grade, "correct") ? "it is not correct" : "";
}
std::string wrong_with(const Mutant& mutant, const Grade& grade) {
  if (!mutant.judged) return "docs/checks.md does not say what rejects it";
  if (mutant.by_checks && !loses(grade, "correct")) return "it loses no points on being correct";
  if (mutant.by_emulator && grade.part("clean").items.front().points > 0)
    return "it loses no points on what the emulator reports";
  if (mutant.by_checks || mutant.by_emulator) return "";
  if (grade.whole && loses(grade, "correct"))
    return "it loses points on being correct, and only its price is wrong";
  return loses_counts(grade) ? "" : "it loses no points on the claim";
}

std::string wrong_with(const Solution& solution, const Grade& grade) {
  constexpr int most_points = 80;  // of what has a mistake
  if (solution.idea == solution.wrong || solution.phrases.empty())
    return "it does not say 'Kind: idea' or 'Kind: wrong', and 'Named by: PHRASE | PHRASE'";
  if (grade.points() > most_points) return fmt::format("it has more than {} points", most_points);
  if (!solution.idea) return "";
  if (grade.whole && loses(grade, "correct"))
    return "it loses points on being correct, and only its idea is undone";
  return loses_counts(grade) ? "" : "it loses no points on the counts";
}

/// A file of tests/cheats/ gets nothing, and is told why.
std::string wrong_with_cheat(const Solution& cheat, const Grade& grade) {
  if (grade.points() > 0) return fmt::format("it has {} points", grade.points());
  return names_mistake(grade, cheat.phrases)
             ? ""
             : "what it does is not named, but: " + grade.refused + grade.compile_error;
}

/// The reference is the first.
std::vector<Sample> samples_of(const Lab& lab, const CheckOptions& options) {
  std::vector<Sample> samples = {{"reference", lab.source.reference, wrong_with_reference},
                                 {"skeleton", lab.source.skeleton, wrong_with_skeleton}};
  if (std::string before = stage_before(lab); !before.empty())
    samples.push_back({"stage before", std::move(before),
                       [&lab](const Grade& grade) { return wrong_with_stage_before(lab, grade); }});
  for (const fs::path& patch :
       patches_of(lab, "tests/mutants", std::min(options.most, options.most_mutants))) {
    Mutant mutant{patch.stem().string(), patched(lab, patch)};
    if (mutant.text.empty()) {
      // Some mutants of a variant are wrong in the kernels, which its file includes.
      if (fs::exists(folder_of(*lab.stage) / "policy.hpp")) continue;
      throw Error(fmt::format("{} does not apply", patch.string()));
    }
    read_verdicts(mutant);
    samples.push_back(
        {mutant.name, mutant.text, [mutant](const Grade& grade) { return wrong_with(mutant, grade); }});
    samples.back().may_be_refused = true;
    samples.back().fails_by_outputs = mutant.by_checks && !mutant.by_emulator;
    samples.back().fails_by_counts = mutant.judged && !mutant.by_checks && !mutant.by_emulator;
  }
  for (const fs::path& patch : patches_of(lab, "tests/solutions", options.most)) {
    const Solution solution = read_solution(lab, patch);
    samples.push_back({solution.name, solution.text,
                       [solution](const Grade& grade) { return wrong_with(solution, grade); },
                       solution.phrases});
    samples.back().fails_by_outputs = solution.wrong && !solution.idea;
    samples.back().fails_by_counts = solution.idea && !solution.wrong;
  }
  for (const fs::path& patch : patches_of(lab, "tests/cheats", options.most)) {
    const Solution cheat = read_solution(lab, patch);
    samples.push_back(
        {cheat.name, cheat.text, [cheat](const Grade& grade) { return wrong_with_cheat(cheat, grade); }});
    samples.back().cheats = true;
  }
  return samples;
}

/// The first that the grader says is missing, or "".
std::string first_feedback(const Grade& grade) {
  for (const Part& part : grade.parts) {
    for (const Item& item : part.items) {
      if (!item.feedback.empty()) return fmt::format("{}, {}: {}", part.name, item.name, item.feedback);
    }
  }
  return "";
}

/// A row of the table, whether it is as it should be, and whether its mistake is to be named and is.
struct Row {
  std::vector<std::string> cells;
  bool good, to_name, named;
  std::string feedback;  ///< What the grader said first.
};

Row row_of(const Lab& lab, const Sample& sample, const Grade& grade) {
  const bool to_name = !sample.phrases.empty(), named = to_name && names_mistake(grade, sample.phrases);
  // The compiler, too, may name a mistake: that of an f32 made a plain float.
  const bool refused = !grade.refused.empty();
  const std::string why = sample.cheats ? sample.wrong(grade)
                          : refused ? sample.may_be_refused ? "" : "it is not accepted: " + grade.refused
                          : grade.compile_error.empty() ? sample.wrong(grade)
                          : named                       ? ""
                                                        : "it does not compile: " + grade.compile_error;
  Row row{{number_text(*lab.stage), sample.name, why.empty() ? "yes" : "NO: " + why,
           !to_name ? ""
           : named  ? "yes"
                    : "NO"},
          why.empty(),
          to_name,
          named,
          first_feedback(grade)};
  for (const char* part : {"correct", "idea", "claim", "clean"}) {
    const bool known =
        !grade.part(part).items.empty() && (grade.whole || part == std::string_view("correct"));
    row.cells.push_back(known ? std::to_string(grade.part(part).points()) : "");
  }
  row.cells.push_back(grade.whole ? std::to_string(grade.points()) : "");
  return row;
}

/// Seconds of processor time that this program and those that it has run have used.
double processor_seconds() {
  double seconds = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  }
  return seconds;
}

/// Two gradings keep two cores busy. More threads for one of them would only wait for each other.
void oracle_has_one_thread() {
#ifdef _OPENMP
  omp_set_num_threads(1);
#endif
}

/// Grades all samples of a lab: the reference alone, to see what it takes, then two at a time.
std::vector<Row> check(const Lab& lab, const CheckOptions& options, Progress& progress) {
  const std::vector<Sample> samples = samples_of(lab, options);
  const double begin = processor_seconds();
  const Grader grader(lab);
  const KeepInputs same_inputs;
  const CompiledHeaders headers(*lab.stage, lab.source.reference);
  const GradeSettings settings{hash_of(lab.source.reference),
                               {.seconds = usual_seconds, .memory = std::int64_t{usual_mebibytes} << 20}};
  std::vector<Row> rows(samples.size());
  std::mutex speaking;
  const auto grade = [&](std::size_t i) {
    {
      const std::lock_guard lock(speaking);
      progress.step(fmt::format("lab {}: {} ...", label(*lab.stage), samples[i].name));
    }
    const Sample& sample = samples[i];
    GradeSettings own = settings;
    if (!sample.cheats) own.headers = &headers;  // a cheat may change what a header says
    // One wrong output, or one count, costs what makes it fail, whatever else is run.
    if (sample.fails_by_outputs || sample.fails_by_counts)
      own.enough = [&](const Grade& early) {
        const bool right = early.part("correct").items.front().reached;
        const bool fails = right ? sample.fails_by_counts && loses_counts(early) : sample.fails_by_outputs;
        return fails && (sample.phrases.empty() || names_mistake(early, sample.phrases));
      };
    rows[i] = row_of(lab, sample, grader.grade(sample.text, own));
  };
  oracle_has_one_thread();
  grade(0);
  const double seconds = processor_seconds() - begin;
  rows[0].cells[2] += fmt::format(", in {:.1f} s", seconds);
  std::atomic<std::size_t> next = 1;
  const auto work = [&] {
    oracle_has_one_thread();
    for (std::size_t i; (i = next++) < samples.size();) grade(i);
  };
  auto other = std::async(std::launch::async, work);
  work();
  other.get();
  return rows;
}

/// The labs that are asked for.
std::vector<const Stage*> chosen_labs(const std::vector<std::string>& selections) {
  std::vector<const Stage*> chosen;
  if (selections.empty()) {
    std::ranges::copy_if(stages(), std::back_inserter(chosen),
                         [](const Stage* stage) { return has_lab(*stage); });
  }
  for (const std::string& selection : selections) {
    for (const Stage* stage : select_stages(selection)) chosen.push_back(find_lab(*stage).stage);
  }
  return chosen;
}

}  // namespace

int check_labs(const CheckOptions& options) {
  const Uninterrupted whole;
  std::size_t graded = 0;
  std::vector<std::string> wrong;  // said once more at the end, below tables that are long
  const std::vector<const Stage*> chosen = chosen_labs(options.stages);
  // A patch that does not apply is told in every turn.
  for (const Stage* stage : chosen) samples_of(find_lab(*stage), options);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (!options.turn.takes(i)) continue;
    std::vector<std::vector<std::string>> table = {
        {"lab", "handed in", "gets its points", "named", "correct", "idea", "claim", "clean", "in all"}};
    std::size_t to_name = 0, named = 0;
    {
      Progress progress;
      for (const Row& row : check(find_lab(*chosen[i]), options, progress)) {
        table.push_back(row.cells);
        ++graded;
        if (!row.good) {
          wrong.push_back(fmt::format("lab {}: {}: {}{}", row.cells[0], row.cells[1], row.cells[2],
                                      row.feedback.empty() ? "" : "; first feedback: " + row.feedback));
        }
        to_name += row.to_name;
        named += row.named;
      }
    }
    print("{}\n", render_table(table, 4));
    if (to_name == 0) continue;
    const bool sampled = options.most != SIZE_MAX;
    const bool enough = sampled || 10 * named >= 9 * to_name;
    if (!enough) wrong.push_back(fmt::format("lab {}: too few mistakes are named", label(*chosen[i])));
    print("lab {}: the feedback names the mistake of {} of {} solutions{}\n\n", label(*chosen[i]), named,
          to_name, enough ? "" : ", which is less than 9 of 10");
  }
  if (graded == 0) throw UsageError("that turn has none of these labs: take another one, or more labs");
  print("{} graded, {} not as it should be; seconds are of processor time\n", graded, wrong.size());
  for (const std::string& line : wrong) print("{}\n", line);
  return wrong.empty() ? 0 : 1;
}

}  // namespace flashladder::lab
