#include "common/labs/grade.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <sstream>

#include "common/check/check.hpp"
#include "common/check/diagnose.hpp"
#include "common/claims/closed_form.hpp"
#include "common/error.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/claim.hpp"
#include "common/labs/gradients.hpp"
#include "common/labs/mistakes.hpp"
#include "common/labs/program.hpp"
#include "common/labs/text.hpp"
#include "common/labs/why.hpp"
#include "common/simt/emulator.hpp"
#include "common/simt/kernel_error.hpp"

namespace flashladder::lab {
namespace {

// One wrong output costs a fifth, one count that is not kept another: `right_points` and `claim_points` are
// had in full or not at all.
constexpr int family_points = 10, right_points = 20, idea_points = 30, claim_points = 20,
              report_points = 15, silence_points = 5;
constexpr unsigned most_at_once = 2;  // programs that run at the same time

/// Some jobs that are run by one process.
struct Run {
  std::vector<Job> jobs;
  Answers answers;
  std::vector<std::string> wrong;  ///< Of each job: what is wrong with it, or "".

  bool right() const {
    return std::ranges::all_of(wrong, [](const std::string& why) { return why.empty(); });
  }
  std::size_t first_wrong() const {
    return static_cast<std::size_t>(
        std::ranges::find_if(wrong, [](const std::string& why) { return !why.empty(); }) - wrong.begin());
  }
};

/// All runs of a grading.
struct Runs {
  std::vector<Run> families;
  Run clean, far_apart, moved_mask, counted;

  std::vector<Run*> all() {
    std::vector<Run*> list = {&clean, &far_apart, &moved_mask, &counted};
    for (Run& run : families) list.push_back(&run);
    return list;
  }
};

Runs make_runs(const Stage& stage, std::uint64_t seed) {
  Runs runs;
  for (const Family& family : input_families())
    runs.families.push_back({cases_of(family, stage, seed), {}, {}});
  runs.clean.jobs = clean_cases(stage);
  runs.far_apart.jobs = far_apart_cases(stage);
  runs.moved_mask.jobs = moved_mask_cases(stage);
  runs.counted.jobs = counted_cases(stage);
  return runs;
}

/// What is right for a job: of the pass that it is.
struct Right {
  Expected forward;
  ExpectedGradients backward;
};

// --- what gradings with the same inputs share, while there is a KeepInputs

bool keeps_inputs = false;
std::mutex keeping;
std::map<std::pair<int, std::uint64_t>, Runs> kept_runs;  // by number of the stage, and seed
std::map<std::pair<std::string, std::uint64_t>, std::shared_ptr<const Right>> kept_right;

/// As make_runs.
Runs runs_of(const Stage& stage, std::uint64_t seed) {
  if (!keeps_inputs) return make_runs(stage, seed);
  const std::lock_guard lock(keeping);
  const auto [found, is_new] = kept_runs.try_emplace({stage.number, seed});
  if (is_new) found->second = make_runs(stage, seed);
  return found->second;
}

// --- what a job's report says

/// "dQ[7421] is ..." as a verdict has it, with the element's place.
std::string with_place(std::string why, const Problem& p) {
  for (const char* nan : {" -nan", " nan"}) {
    for (std::size_t at; (at = why.find(nan)) != why.npos;) why.replace(at, std::strlen(nan), " NaN");
  }
  const std::size_t begin = why.find('['), end = why.find(']');
  const std::string name = why.substr(0, begin);
  const auto* const tensor =
      std::ranges::find_if(all_tensors, [&](const NamedTensor& one) { return one.name == name; });
  if (end == why.npos || tensor == std::end(all_tensors)) return why;
  std::int64_t index = std::stoll(why.substr(begin + 1, end - begin - 1));
  std::string place;
  if (tensor->columns != nullptr) {
    place = fmt::format(", column {}", index % p.*tensor->columns);
    index /= p.*tensor->columns;
  }
  const std::int64_t rows = p.*tensor->rows, heads = p.*tensor->heads;
  place = fmt::format("{} {}{}", tensor->rows == &Problem::Nk ? "key" : "row", index % rows, place);
  if (heads > 1) place = fmt::format("head {}, {}", index / rows % heads, place);
  if (p.batch > 1) place = fmt::format("batch entry {}, {}", index / rows / heads, place);
  return fmt::format("{}, {}{}", name, place, why.substr(end + 1));
}

/// Why a job came to no end; "" where it did.
std::string failure_in(const Program& program, const Report& report) {
  if (report.failure == Failure::none) return "";
  if (report.failure == Failure::machine) throw Error(report.what);
  std::string place = program.place_of(report.thrown_from);
  if (report.failure == Failure::kernel) {
    // The error names the line of the access, which may be in a header: then the line that led there helps.
    const bool known =
        place.empty() || report.what.find("where: " + program.file() + ":") != std::string::npos;
    return "the emulator stopped it: " + report.what + (known ? "" : "\n  in your file: " + place);
  }
  if (!place.empty()) place = " at " + place;
  if (report.failure == Failure::memory) {
    return fmt::format("it asked for more memory than the {} MiB that there are{} ({})",
                       program.limits().memory >> 20, place, report.what);
  }
  return fmt::format("it threw an exception{}: {}", place, report.what);
}

/// Of each of `heads` heads `keys` rows of d numbers, and then zeros up to `more` of them.
template <class T>
void add_keys(std::vector<T>& values, std::int64_t heads, std::int64_t keys, std::int64_t more,
              std::int64_t d) {
  if (values.empty()) return;
  std::vector<T> all(heads * more * d);
  for (std::int64_t head = 0; head < heads; ++head)
    std::copy_n(&values[head * keys * d], keys * d, &all[head * more * d]);
  values = std::move(all);
}

/// The bounds of check.hpp, twice as wide. There, inputs are always the same; here each submission has its
/// own, and right code comes within a tenth of the bound once in ten thousand cases, by the luck of the
/// yardstick.
Right make_right(const Job& job) {
  const Inputs seen = seen_inputs(job);
  const Dtype dtype = job.inputs.problem.dtype;
  Right right;
  if (job.pass == Pass::forward) {
    right.forward = expect_forward(seen, dtype);
    right.forward.O = right.forward.O.times(2);
    right.forward.L *= 2;
    return right;
  }
  ExpectedGradients& expected = right.backward;
  expected = expect_backward(seen, job.given.forward, job.given.dO, dtype);
  for (Bound* bound : {&expected.dQ, &expected.dK, &expected.dV}) *bound = bound->times(2);
  // Keys that no row sees have gradients of 0.
  const Problem& p = job.inputs.problem;
  for (auto [values, bound] :
       {std::pair(&expected.oracle.dK, &expected.dK), {&expected.oracle.dV, &expected.dV}}) {
    const std::int64_t heads = p.batch * p.kv_heads, keys = seen.problem.Nk;
    add_keys(*values, heads, keys, p.Nk, p.d);
    for (Wrong& wrong : bound->wrongs) add_keys(wrong.change, heads, keys, p.Nk, p.d);
  }
  return right;
}

/// As make_right. What is kept is found by a hash of the inputs.
std::shared_ptr<const Right> right_for(const Job& job) {
  if (!keeps_inputs) return std::make_shared<const Right>(make_right(job));
  std::uint64_t hash = static_cast<std::uint64_t>(job.fewer_keys);
  for (const std::vector<float>* values :
       {&job.inputs.Q, &job.inputs.K, &job.inputs.V, &job.given.dO, &job.given.forward.L}) {
    const auto* const bytes = reinterpret_cast<const char*>(values->data());
    hash = 31 * hash + hash_of({bytes, values->size() * sizeof(float)});
  }
  const std::pair key(to_string(job.inputs.problem), hash);
  {
    const std::lock_guard lock(keeping);
    if (const auto found = kept_right.find(key); found != kept_right.end()) return found->second;
  }
  auto made = std::make_shared<const Right>(make_right(job));
  const std::lock_guard lock(keeping);
  return kept_right.try_emplace(key, std::move(made)).first->second;
}

/// The verdict on a job.
Verdict judge(const Program& program, const Job& job, const Report& report) {
  const auto failed = [](std::string why) { return Verdict{.why = std::move(why)}; };
  if (std::string failure = failure_in(program, report); !failure.empty()) return failed(failure);
  if (report.defect.find("never written") != std::string::npos)
    return failed(report.defect + ", or comes from memory that was never written");
  if (!report.defect.empty()) return failed(report.defect);
  if (std::string bypass = bypass_in(program.stage(), job, report); !bypass.empty()) return failed(bypass);
  return check_result(job, report);
}

/// Inputs that would not show what is wrong count for nothing, and must not be all that there are.
void judge(const Program& program, Run& run) {
  bool all_blind = true;
  for (std::size_t i = 0; i < run.jobs.size(); ++i) {
    if (i >= run.answers.reports.size()) {
      run.wrong.push_back(run.answers.ended);
      all_blind = false;
      continue;
    }
    const Verdict verdict = judge(program, run.jobs[i], run.answers.reports[i]);
    run.wrong.push_back(verdict.blind ? "" : verdict.why);
    all_blind = all_blind && verdict.blind;
  }
  if (all_blind && !run.jobs.empty())
    throw Error("the inputs of this seed cannot show what is wrong: grade with another --seed");
}

/// Runs and judges them, two at a time. Behind one that comes to no end none counts: those that a grade is
/// made of are the same however fast each is.
void run_all(const Program& program, const std::vector<Run*>& runs) {
  std::atomic<std::size_t> next = 0, endless = runs.size();  // the first that comes to no end
  const auto work = [&] {
    for (std::size_t i; (i = next++) < endless;) {
      runs[i]->answers = program.run(runs[i]->jobs);
      std::size_t first = endless;
      while (runs[i]->answers.out_of_time && i < first && !endless.compare_exchange_weak(first, i)) {
      }
    }
  };
  std::vector<std::future<void>> workers;
  for (unsigned i = 0; i < most_at_once; ++i) workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers) worker.get();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > endless) {
      runs[i]->answers = {};
      runs[i]->answers.ended = "not run: " + runs[endless]->answers.ended;
    }
    judge(program, *runs[i]);
  }
}

// --- why an output is wrong

/// "S, m and l are right"; "" of none.
std::string all_right(const std::vector<std::string>& names) {
  return names.empty() ? "" : listed(names) + (names.size() == 1 ? " is right" : " are right");
}

/// Runs a job once more, to see its intermediates: the first that is wrong, and those that are right.
std::string said_by_intermediates(const Program& program, Job job) {
  job.intermediates = true;
  const Answers answers = program.run({job});
  if (answers.reports.empty() || answers.reports[0].failure != Failure::none) return "";
  const Diagnosis diagnosis = diagnose(program.stage(), job.inputs, answers.reports[0].intermediates);
  const std::string right = all_right(diagnosis.right);
  if (!diagnosis.first.empty()) {
    return diagnosis.first + (right.empty()                    ? ""
                              : diagnosis.first.ends_with('?') ? " " + right
                                                               : ". " + right);
  }
  if (right.empty()) return "";
  const bool O_is_shown = std::ranges::find(diagnosis.right, "O") != diagnosis.right.end();
  return right + (O_is_shown ? ": look at what is stored, and where" : ": look behind the loop");
}

/// What is wrong with a job of a CPU stage, which shows no intermediates: a mistake that gives such
/// outputs, or the weights that another run shows.
std::string said_by_outputs(const Program& program, const Job& job, const Report& report) {
  std::string known = known_mistake(job, report.result, tile_of(program.stage(), job.inputs.problem).Bc);
  if (!known.empty()) return known;
  const Job weights = weights_job(job);
  const Answers answers = program.run({weights});
  if (answers.reports.empty() || answers.reports[0].failure != Failure::none) return "";
  return wrong_weights(weights, answers.reports[0].result);
}

/// What the outputs of the first wrong job say of the mistake, and its intermediates; a line each.
std::string why_wrong(const Program& program, const Run& run) {
  const std::size_t first = run.first_wrong();
  if (first >= run.answers.reports.size()) return "";
  const Job& job = run.jobs[first];
  const Report& report = run.answers.reports[first];
  if (report.failure != Failure::none || job.far_apart) return "";
  const ClaimedTile tile = tile_of(program.stage(), job.inputs.problem);
  const auto lines_of = [](const std::vector<std::string>& all) {
    std::string lines;
    for (const std::string& line : all) lines += line.empty() ? "" : "\n" + line;
    return lines;
  };
  if (job.pass == Pass::backward) {
    const Gradients<double> oracle = oracle_backward_from(job.inputs, job.given.forward, job.given.dO);
    return lines_of({gradients_wrong(job, report.gradients, oracle),
                     gradient_mistake(job, report.gradients, oracle, tile)});
  }
  const Result<double> oracle = oracle_forward(job.inputs);
  const std::int64_t Bc = tile.Bc > 1 ? tile.Bc : job.inputs.problem.Nk;  // without tiles any may be off
  return lines_of({where_wrong(job.inputs.problem, report.result, oracle),
                   keys_in_place(job.inputs, report.result, oracle, Bc),
                   scores_in_place(job.inputs, report.result, oracle),
                   claim_of(program.stage()) != nullptr ? said_by_intermediates(program, job)
                                                        : said_by_outputs(program, job, report)});
}

// --- the parts

/// What two failures have in common that are told only once: of a kernel's error, its kind and its lines.
std::string gist(const std::string& why) {
  std::string gist;
  std::istringstream lines(why);
  for (std::string line; std::getline(lines, line);) {
    if (gist.empty() || line.starts_with("  in your file: ")) gist += line;
    if (line.starts_with("  where: ")) gist += line.substr(0, line.find(','));
  }
  return gist;
}

/// The item of a family. `said` is what was wrong in the families before: once is enough.
void fill_family(Item& item, const Program& program, const Run& run, std::string& said) {
  std::vector<bool> right;
  for (const std::string& why : run.wrong) right.push_back(why.empty());
  const auto count = std::ranges::count(right, false);
  item.points = static_cast<int>(item.most * (std::ssize(right) - count) / std::ssize(right));
  item.reached = count == 0;
  if (item.reached) return;
  const std::size_t first = run.first_wrong();
  const std::string trait = common_trait(program.stage(), run.jobs, right);
  item.feedback = fmt::format("{} of {} cases are wrong{}. The first: {}: {}", count, right.size(),
                              count == std::ssize(right) ? ""
                              : trait.empty()            ? ""
                                                         : ": " + trait,
                              words_of(run.jobs[first]),
                              gist(run.wrong[first]) == said ? "as above" : run.wrong[first]);
  if (said.empty()) {
    item.feedback += why_wrong(program, run);
  }
  said = gist(run.wrong[first]);
}

void fill_correct(Part& part, const Program& program, Runs& runs) {
  std::string said;
  for (std::size_t f = 0; f < runs.families.size(); ++f)
    fill_family(part.items[f], program, runs.families[f], said);
  Item& all = part.items.back();
  all.reached = std::ranges::all_of(runs.all(), &Run::right);
  if (all.reached) {
    all.points = all.most;
  } else if (said.empty() && runs.clean.right() && runs.far_apart.right()) {
    const Run& run = runs.counted.right() ? runs.moved_mask : runs.counted;
    const std::size_t first = run.first_wrong();
    all.feedback = fmt::format("a case {} is wrong: {}: {}",
                               run.jobs[first].fewer_keys == 0
                                   ? "that is counted"
                                   : "in which n.visible_keys() has fewer keys for each row",
                               words_of(run.jobs[first]), run.wrong[first]) +
                   (run.jobs[first].fewer_keys == 0 ? why_wrong(program, run) : "");
  } else if (said.empty()) {
    all.feedback = "what is wrong is told below, under clean" +
                   why_wrong(program, runs.clean.right() ? runs.far_apart : runs.clean);
  }
}

/// Whether the outputs of a job whose mask has moved are those of a mask that has not.
bool is_of_unmoved_mask(Job job, const Report& report) {
  job.fewer_keys = 0;
  if (job.pass == Pass::forward) return check_result(job, report).passed;
  // O and L, which are given, are those of the mask that has moved.
  return check_backward(report.gradients, expect_backward_part(job.inputs, job.given.forward, job.given.dO,
                                                               job.inputs.problem.dtype))
      .passed;
}

/// Where all is right, but for the case whose mask has moved, in which the outputs are those of a mask that
/// has not; else "".
std::string mask_of_its_own(const Runs& runs) {
  const bool others_are_right =
      runs.clean.right() && runs.counted.right() && std::ranges::all_of(runs.families, &Run::right);
  if (!others_are_right) return "";
  for (std::size_t i = 0; i < runs.moved_mask.answers.reports.size(); ++i) {
    if (runs.moved_mask.wrong[i].empty()) continue;
    if (!is_of_unmoved_mask(runs.moved_mask.jobs[i], runs.moved_mask.answers.reports[i])) continue;
    return "which keys a row sees is computed in the file: ask n.visible_keys(i), or your own mask for row "
           "asked(i), so that it is seen which tiles are masked";
  }
  return "";
}

std::vector<Count> counts_in(const std::vector<Counter>& counters, const Run& run) {
  std::vector<Count> counts;
  for (const Counter& counter : counters) {
    Count& count = counts.emplace_back(Count{counter.name, true, {}});
    for (std::size_t i = 0; i < run.answers.reports.size(); ++i) {
      if (run.answers.reports[i].failure != Failure::none) break;
      count.counted.push_back(counter.counted(run.jobs[i], run.answers.reports[i]));
      count.reached =
          count.reached && reaches(counter.rule, count.counted.back(), counter.claimed(run.jobs[i]));
    }
    count.reached = count.reached && count.counted.size() == run.jobs.size();
  }
  return counts;
}

/// What an item on the counts is worth where they are all kept: in proportion to the cases with right
/// outputs.
void give_points(Item& item, const Run& run) {
  if (!item.reached) return;
  const auto right = std::ranges::count(run.wrong, "");
  item.points = static_cast<int>(item.most * right / std::ssize(run.wrong));
  if (item.points < item.most) {
    item.feedback = fmt::format("reached; it counts only where the outputs are right: in {} of {} cases",
                                right, run.wrong.size());
  }
}

/// The counts of the idea, an item each; those that are no idea are told where all of them are asked for.
void fill_counts(Part& idea, Part& claim, const Lab& lab, const std::vector<Counter>& counters,
                 const std::vector<Count>& counts, const Run& run) {
  Item& all = claim.items.front();
  all.reached = true;
  auto item = idea.items.begin();
  for (std::size_t c = 0; c < counters.size(); ++c) {
    Item& told = counters[c].idea ? *item++ : all;
    if (counters[c].idea) told.reached = counts[c].reached;
    all.reached = all.reached && counts[c].reached;
    if (counts[c].reached) continue;
    if (counts[c].counted.size() < run.jobs.size()) {
      told.feedback = "not counted: it did not come to an end in all cases";
    } else {
      if (!told.feedback.empty()) told.feedback += "\n";
      told.feedback += feedback_on(lab, counters[c], run.jobs, counts[c].counted);
    }
  }
  if (!all.reached && all.feedback.empty()) all.feedback = "those of the idea are not all kept";
  for (Item& one : idea.items) give_points(one, run);
  give_points(all, run);
}

/// What the emulator found first, in any run, or what else is wrong where it looks for all; "" where
/// nothing is.
std::string unclean(const Runs& runs) {
  const auto said_of = [](const Run& run, std::size_t i) {
    return fmt::format("{}: {}", words_of(run.jobs[i]), run.wrong[i]);
  };
  for (const Run* run : {&runs.clean, &runs.far_apart}) {
    if (!run->right()) return said_of(*run, run->first_wrong());
  }
  for (const Run& run : runs.families) {
    for (std::size_t i = 0; i < run.answers.reports.size(); ++i) {
      if (run.answers.reports[i].failure == Failure::kernel) return said_of(run, i);
    }
  }
  return "";
}

/// Why the other runs would come to no end either; "" where nothing says so.
std::string endless(const Run& run) {
  if (run.answers.out_of_time) return run.answers.ended;
  for (std::size_t i = 0; i < run.answers.reports.size(); ++i) {
    if (run.answers.reports[i].kind == simt::name_of(simt::ErrorKind::endless_loop)) return run.wrong[i];
  }
  return "";
}

/// The first race of a CPU stage in its cases with several threads; "" where there is none.
std::string first_race(const Program& program, const Runs& runs) {
  static constexpr const char* names[] = {"Q", "K", "V", "O", "L", "the extra memory", "a variable"};
  for (const Run* run : {&runs.clean, &runs.counted}) {
    for (std::size_t i = 0; i < run->answers.reports.size(); ++i) {
      const Watched& seen = run->answers.reports[i].watched;
      if (seen.races == 0) continue;
      const Race& race = seen.race;
      const Problem& p = run->jobs[i].inputs.problem;
      std::string what = names[static_cast<int>(race.memory)];
      if (race.memory == Race::Memory::O || race.memory == Race::Memory::L) {
        const std::int64_t row = race.element / (race.memory == Race::Memory::O ? p.d : 1);
        what += fmt::format(", head {}, row {}", row / p.Nq % p.q_heads, row % p.Nq);
      } else if (race.memory == Race::Memory::workspace) {
        what += fmt::format(", element {}", race.element);
      }
      const std::string place = program.place_of({race.from});
      return fmt::format(
          "{}: a race: thread {} {} {}{}, which thread {} uses too, and no barrier or lock orders them. "
          "What several "
          "threads write must be a part for each, chosen by this_thread(), or written by one alone",
          words_of(run->jobs[i]), race.thread, race.writes ? "writes" : "reads", what,
          place.empty() ? "" : " at " + place, race.before);
    }
  }
  return "";
}

/// Whether a CPU stage gives the same to the last bit with one thread and with several.
std::string differing(const Stage& stage, const Run& clean) {
  if (claim_of(stage) != nullptr) return "";
  for (std::size_t i = 0; i + 1 < clean.answers.reports.size(); ++i) {
    const Job &one = clean.jobs[i], &two = clean.jobs[i + 1];
    if (one.inputs.problem.Nk != two.inputs.problem.Nk) continue;
    const Result<float>&a = clean.answers.reports[i].result, &b = clean.answers.reports[i + 1].result;
    if (a.O != b.O || a.L != b.L) {
      return fmt::format(
          "{}: the results with {} and with {} threads are not the same: do two threads use the same "
          "memory?",
          words_of(one), one.threads, two.threads);
    }
  }
  return "";
}

void fill_clean(Part& part, const Program& program, const Runs& runs, const std::string& printed) {
  Item &reports = part.items[0], &silence = part.items[1];
  reports.feedback = unclean(runs);
  if (const std::string race = first_race(program, runs); !race.empty()) reports.feedback = race;
  if (reports.feedback.empty()) reports.feedback = differing(program.stage(), runs.clean);
  if (!printed.empty())
    silence.feedback = "it prints, which is no part of the task; take it out before you hand it in";
  for (Item* item : {&reports, &silence}) {
    item->reached = item->feedback.empty();
    if (!item->reached) continue;
    if (!runs.clean.right()) {
      item->feedback = "it counts only with right outputs";
    } else if (!reports.reached) {
      item->feedback = "it counts only where nothing is reported";
    } else {
      item->points = item->most;
    }
  }
}

/// What all runs together printed.
std::string printed_by(Runs& runs) {
  for (const Run* run : runs.all()) {
    if (!run->answers.output.empty()) return first_lines(run->answers.output, 10);
  }
  return "";
}

std::vector<Part> make_parts(const Lab& lab, const std::vector<Counter>& counters) {
  Part correct{"correct", "correct", {}}, idea{"idea", "the idea: counts of the claim", {}},
      claim{"claim", "the claim: all counts, those of the idea and those that stay as they were", {}},
      clean{"clean", "clean", {}};
  const auto add = [](Part& part, const std::string& name, const std::string& title) {
    Item& item = part.items.emplace_back();
    item.name = name;
    item.title = title;
  };
  for (const Family& family : input_families())
    add(correct, std::string(family.name), std::string(family.name));
  add(correct, "all", "every output of every run");
  for (const Counter& counter : counters) {
    if (counter.idea)
      add(idea, counter.name, fmt::format("{} {} {}", counter.name, sign_of(counter.rule), counter.form));
  }
  add(claim, "all", "every count is kept");
  add(clean, "reports",
      claim_of(*lab.stage) != nullptr ? "no race, nothing out of bounds, nothing the emulator reports"
                                      : "no race, and the same result with any number of threads");
  add(clean, "silence", "prints nothing");
  const auto share = [](std::span<Item> items, int points) {
    const std::vector<int> all = shares(points, items.size());
    for (std::size_t i = 0; i < all.size(); ++i) items[i].most = all[i];
  };
  share(std::span(correct.items).first(input_families().size()), family_points);
  correct.items.back().most = right_points;
  share(idea.items, idea_points);
  claim.items[0].most = claim_points;
  clean.items[0].most = report_points;
  clean.items[1].most = silence_points;
  return {std::move(correct), std::move(idea), std::move(claim), std::move(clean)};
}

/// Throws Error where not even the reference compiles: then it is not the student's file that is wrong.
void require_compiler(const Lab& lab, const Limits& limits) {
  const TemporaryFolder folder;
  const Program reference(*lab.stage, lab.file, lab.source.reference, folder.path(), limits);
  if (!reference.compiled().ok) {
    throw Error(
        fmt::format("nothing compiles on this machine now, not even the reference: {}; is there "
                    "room in {}, and are memory, open files and processes not limited too much?",
                    reference.compiled().error, folder.path().parent_path().string()));
  }
}

template <class All, class Value>
int total(const All& all, Value value) {
  return std::transform_reduce(all.begin(), all.end(), 0, std::plus(), value);
}

}  // namespace

int Part::most() const {
  return total(items, [](const Item& item) { return item.most; });
}
int Part::points() const {
  return total(items, [](const Item& item) { return item.points; });
}
int Grade::most() const {
  return total(parts, [](const Part& part) { return part.most(); });
}
int Grade::points() const {
  return total(parts, [](const Part& part) { return part.points(); });
}
const Part& Grade::part(std::string_view name) const {
  static const Part none;
  const auto found = std::ranges::find(parts, name, &Part::name);
  return found == parts.end() ? none : *found;
}

Verdict check_result(const Job& job, const Report& report) {
  const std::shared_ptr<const Right> right = right_for(job);
  Verdict verdict = job.pass == Pass::forward ? check_forward(report.result, right->forward)
                                              : check_backward(report.gradients, right->backward);
  if (!verdict.passed) verdict.why = with_place(verdict.why, job.inputs.problem);
  if ((verdict.passed || verdict.blind) && report.bytes_kept != 0)
    return {.why = "it did not give its extra memory back"};
  return verdict;
}

KeepInputs::KeepInputs() {
  keeps_inputs = true;
}
KeepInputs::~KeepInputs() {
  keeps_inputs = false;
  kept_runs.clear();
  kept_right.clear();
}

std::vector<int> shares(int points, std::size_t count) {
  std::vector<int> all;
  for (std::size_t i = 0; i < count; ++i) {
    const int left = points - std::accumulate(all.begin(), all.end(), 0),
              items = static_cast<int>(count - i);
    all.push_back((left + items - 1) / items);
  }
  return all;
}

Grader::Grader(const Lab& lab)
    : lab_(lab),
      counted_cases_(lab::counted_cases(*lab.stage)),
      counters_(counters_of(lab, counted_cases_)),
      parts_(make_parts(lab, counters_)) {}

Grade Grader::grade(const std::string& text, const GradeSettings& settings) const {
  const Stage& stage = *lab_.stage;
  Grade grade;
  grade.seed = settings.seed.value_or(hash_of(text));
  grade.parts = parts_;

  const TemporaryFolder folder;
  const Program program(stage, lab_.file, text, folder.path(), settings.limits, Backend::emulator,
                        settings.headers);
  grade.log = program.compiled().log;
  grade.warnings = program.compiled().warnings;
  grade.refused = program.compiled().refused;
  grade.compile_error = program.compiled().error;
  if (!program.compiled().ok) {
    if (program.compiled().doubtful) require_compiler(lab_, settings.limits);
    return grade;
  }

  Runs runs = runs_of(stage, grade.seed);
  const auto refuse_uncounted = [&] {
    for (std::size_t i = 0; i < runs.counted.answers.reports.size() && grade.refused.empty(); ++i)
      grade.refused = uncounted_in(stage, runs.counted.jobs[i], runs.counted.answers.reports[i]);
  };
  std::vector<Run*> others = runs.all();
  if (settings.enough) {
    Run& first = runs.families.front();
    run_all(program, {&first, &runs.counted});
    refuse_uncounted();
    if (!grade.refused.empty()) return grade;
    std::string said;
    Grade early = grade;
    early.whole = false;
    fill_family(early.parts[0].items[0], program, first, said);
    early.counts = counts_in(counters_, runs.counted);
    fill_counts(early.parts[1], early.parts[2], lab_, counters_, early.counts, runs.counted);
    if (settings.enough(early)) return early;
    std::erase(others, &first);
    std::erase(others, &runs.counted);
  }
  // First the run that looks for endless loops: what does not end there would not end elsewhere.
  run_all(program, {&runs.clean});
  std::erase(others, &runs.clean);
  if (const std::string why = endless(runs.clean); !why.empty()) {
    for (Run* run : others) run->wrong.assign(run->jobs.size(), why);
  } else {
    run_all(program, others);
  }
  refuse_uncounted();
  if (grade.refused.empty()) grade.refused = mask_of_its_own(runs);
  if (!grade.refused.empty()) return grade;
  grade.printed = printed_by(runs);
  grade.counts = counts_in(counters_, runs.counted);
  const std::span<Part, 4> parts(grade.parts);  // in the order of make_parts
  fill_correct(parts[0], program, runs);
  fill_counts(parts[1], parts[2], lab_, counters_, grade.counts, runs.counted);
  fill_clean(parts[3], program, runs, grade.printed);
  return grade;
}

}  // namespace flashladder::lab
