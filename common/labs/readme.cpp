#include "common/labs/readme.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "common/io/terminal.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/grade.hpp"
#include "common/labs/text.hpp"

namespace flashladder::lab {
namespace {

constexpr std::size_t columns = 120;  // of a line of Markdown

std::string paragraph(const std::string& text) {
  return wrapped(text, "", columns) + "\n";
}
std::string bullet(const std::string& text) {
  std::string lines = wrapped(text, "  ", columns);
  return lines.replace(0, 2, "- ");
}

/// What there are points for.
std::string table_of_parts(const Grader& grader) {
  std::string text = "| part | points |\n|---|--:|\n";
  int all = 0;
  for (const Part& part : grader.parts()) {
    std::string names;
    for (const Item& item : part.items)
      names += fmt::format("{}{}, {}", names.empty() ? ": " : "; ", item.title, item.most);
    const bool told =
        part.name == "correct" || part.name == "clean";  // the counts have a table of their own
    text += fmt::format("| {}{} | {} |\n", part.title, told ? names : "", part.most());
    all += part.most();
  }
  return text + fmt::format("| in all | {} |\n\n", all);
}

std::string rules(const Lab& lab, const Grader& grader) {
  const std::size_t cases = cases_of(input_families()[0], *lab.stage, 0).size();
  const bool kernel = claim_of(*lab.stage) != nullptr;
  return bullet(fmt::format(
             "*Correct*: each family of inputs is tried on up to {} problems: ragged lengths, masks, "
             "grouped "
             "heads, rows that see no key, other layouts in memory, thousands of keys, of rows. Its points "
             "are in proportion to those "
             "that are right. One wrong output in any run costs the {} points for all of them.",
             cases, grader.parts()[0].items.back().most)) +
         bullet(fmt::format(
             "*Counts* must keep to their closed forms on {} problems, and count only where the outputs "
             "are right. One count that is not kept costs the {} points for all of them, and those of the "
             "idea their share of {} too.",
             grader.counted_cases().size(), grader.parts()[2].most(), grader.parts()[1].most())) +
         bullet(kernel ? "*Clean*: the threads run in three orders, and the emulator looks for races, "
                         "missing barriers and accesses out of bounds. It counts only where the outputs "
                         "are right."
                       : "*Clean*: one, two and five threads must give the same result to the last bit, "
                         "and a right one.") +
         bullet(fmt::format(
             "Each run of your code has {} s of processor time and {} MiB of memory. It must not print or "
             "throw.",
             usual_seconds, usual_mebibytes)) +
         bullet(
             "A file is not run, and told why, that calls what a stage does not need (files, processes, "
             "threads but OpenMP's, clocks), keeps variables from one call to the next, includes a stage "
             "or goes around what counts. docs/labs.md has the rules.") +
         "\n";
}

/// What a counter of the idea is worth, beside its part in all of them; "" for the others.
std::string worth(const Grader& grader, const Counter& counter) {
  for (const Item& item : grader.parts()[1].items) {
    if (item.name == counter.name) return std::to_string(item.most);
  }
  return "";
}

/// The closed forms, and what they give in two of the cases.
std::string table_of_counters(const Grader& grader, const Job& one, const Job& other) {
  std::string text = fmt::format("| counter | closed form | {} | {} | points |\n|---|---|--:|--:|--:|\n",
                                 words_of(one), words_of(other));
  std::string none;  // what is 0 and was 0 before: not worth a row
  for (const bool idea : {true, false}) {
    for (const Counter& counter : grader.counters()) {
      if (counter.idea != idea || counter.form.empty()) continue;
      if (!idea && counter.form == "0") {
        none += fmt::format("{}`{}`", none.empty() ? "" : ", ", counter.name);
        continue;
      }
      text += fmt::format("| `{}` | {} {} | {} | {} | {} |\n", counter.name, sign_of(counter.rule),
                          counter.form, grouped(counter.claimed(one)), grouped(counter.claimed(other)),
                          worth(grader, counter));
    }
  }
  if (!none.empty()) text += "\n" + wrapped("0, as in the stage before: " + none + ".", "", columns);
  return text + "\n";
}

}  // namespace

std::string readme_of(const Lab& lab) {
  const Grader grader(lab);
  const bool kernel = claim_of(*lab.stage) != nullptr;
  const std::vector<Job>& cases = grader.counted_cases();
  return lab.handout.text + "\n## How it is graded\n" +
         paragraph(fmt::format(
             "`./ladder lab grade DIR` compiles `{}`, runs it and says what is right, what is not and why; "
             "`./ladder` is in `{}`. Grade as often as you like: the same file always gets the same grade. "
             "`--json FILE` writes it for a machine.",
             lab.file, FLASHLADDER_SOURCE_DIR)) +
         table_of_parts(grader) + rules(lab, grader) +
         table_of_counters(grader, cases[0], cases[kernel ? 5 : 2]) +
         paragraph(
             "BH: query heads of all batch entries; BHkv: key/value heads; Tr, Tc: tiles of rows and of "
             "keys; R: threads that "
             "hold a row; pairs: of a query and a key that it sees, in one head. Where it says `<=`, fewer "
             "are as good.") +
         (kernel ? paragraph(
                       "All else that the ledger counts must not be more than in the reference: shuffles, "
                       "`__syncwarp`, bytes read from and written to shared memory, by array and in all. "
                       "A quarter more is allowed of additions, maxima, sectors of global memory, passes "
                       "over the banks of shared memory, and of what the busiest thread does.")
                 : std::string()) +
         "`CMakeLists.txt` compiles the file for an editor or a debugger; the grade does not depend on "
         "it.\n";
}

}  // namespace flashladder::lab
