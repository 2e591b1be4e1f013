#include "common/cli/climb_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace flashladder {
namespace {

using Json = nlohmann::ordered_json;

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

/// A GPU's times are often below a millisecond.
std::string ms_text(const Climbed& one) {
  return fmt::format("{:.{}f}", one.median(), one.median() >= 1 ? 2 : 3);
}

/// The table with its second column, the idea, as wide as there is room: in several lines where it has to
/// be, and left out where it would be narrower than a few words.
std::string with_ideas(std::vector<std::vector<std::string>> rows, std::size_t width) {
  constexpr std::size_t few_words = 50;  // with fewer most stages would take three lines
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

Json verdict_json(const Verdict& verdict) {
  const bool compared = was_compared(verdict);
  return {{"passed", verdict.passed},
          {"error", compared ? Json(verdict.error) : Json()},
          {"allowed", compared ? Json(verdict.allowed) : Json()},
          {"why", verdict.why}};
}

}  // namespace

std::string climb_table(const std::vector<Climbed>& all, bool ideas) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "idea", "dtype", "error", "allowed", "memory", "time (ms)", "gain"}};
  for (const Climbed& one : all) {
    std::vector<std::string> row = {label(*one.stage), std::string(one.stage->idea),
                                    std::string(to_string(one.dtype))};
    if (one.status == "out of memory") {
      row.insert(row.end(), {"", "", bytes_text(one.extra_bytes), "no memory", ""});
    } else {
      row.insert(row.end(), {known(one.oracle, one.oracle.error), known(one.oracle, one.oracle.allowed)});
      if (!one.passed()) {
        row.insert(row.end(), {"", one.status == "failed" ? "FAILED" : "NOT JUDGED", ""});
      } else if (!one.timed()) {
        row.insert(row.end(), {bytes_text(one.extra_bytes), "emulated", ""});
      } else {
        const auto before = std::ranges::find_if(
            all, [&](const Climbed& x) { return x.timed() && x.stage == one.yardstick; });
        row.insert(row.end(), {bytes_text(one.extra_bytes), ms_text(one),
                               before == all.end() ? "" : times_text(before->median() / one.median())});
      }
    }
    if (!ideas) row.erase(row.begin() + 1);
    rows.push_back(row);
  }
  if (!ideas) rows[0].erase(rows[0].begin() + 1);
  std::string text = ideas ? with_ideas(rows, terminal_width()) : fit_table(rows, 1, terminal_width());
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

std::string counted_where(const std::vector<Climbed>& all) {
  std::vector<const Stage*> emulated;
  for (const Climbed& one : all) {
    if (one.emulated()) emulated.push_back(one.stage);
  }
  if (std::ranges::none_of(all, [](const Climbed& one) { return one.stage->backend != Backend::cpu; }))
    return "";
  return fit(
      (emulated.empty()
           ? "What the kernels move and compute, counted exactly by the emulator from the same source"
           : fmt::format(
                 "Emulated on the CPU: {}. How long that takes says nothing of a GPU; what they show "
                 "is counts, exact and the same on every machine",
                 numbers_text(emulated))) +
      " (bytes requested, before caches; non-matmul ops: add, mul, div, max, exp, log; ./ladder ledger "
      "shows "
      "all counts).\n\n");
}

std::string ledger_table(const std::string& title, const std::vector<Climbed>& all) {
  std::vector<std::vector<std::string>> rows = {{"stage"}};
  for (const LedgerSummary::Field& field : LedgerSummary::fields()) rows[0].emplace_back(field.title);
  for (const Climbed& one : all) {
    if (!one.counted()) continue;
    std::vector<std::string>& row = rows.emplace_back(1, label(*one.stage));
    for (const LedgerSummary::Field& field : LedgerSummary::fields()) {
      const std::int64_t count = one.ledger.*field.member;
      row.push_back(field.bytes ? bytes_text(count) : short_text(count));
    }
  }
  if (rows.size() == 1) return "";
  return fmt::format("{}:\n\n{}\n", title, fit_table(rows, 1, terminal_width()));
}

Json stage_json(const Climbed& one) {
  return {{"number", one.stage->number},
          {"name", one.stage->name},
          {"title", one.stage->title},
          {"idea", one.stage->idea},
          {"before", (one.yardstick != nullptr ? one.yardstick : one.stage)->number},
          {"backend", to_string(one.stage->backend)},
          {"dtype", to_string(one.dtype)}};
}

Json result_json(const Climbed& one) {
  Json json = {{"status", one.status},
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

}  // namespace flashladder
