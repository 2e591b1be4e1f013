#include <algorithm>
#include <charconv>
#include <set>

#include "common/attention/error.hpp"
#include "common/attention/stage.hpp"

namespace flashladder {

const Stage& on_backend(const Stage& stage, Backend backend) {
  if (stage.backend == backend || stage.backend == Backend::cpu) return stage;
  if (const std::string why = unavailable(backend); !why.empty()) throw Error(why);
  for (const Stage* twin : backend == Backend::cuda ? cuda_stages() : stages()) {
    if (twin->number == stage.number) return *twin;
  }
  throw Error("stage " + label(stage) + " is not compiled for " + std::string(to_string(backend)));
}

namespace {

/// "stage 7 does not exist: this build has 00, 01, 02"
[[noreturn]] void no_such_stage(std::string_view wanted) {
  std::string text = "stage " + std::string(wanted) + " does not exist: this build has ";
  for (const Stage* stage : stages()) {
    if (stage != stages().front()) text += ", ";
    text += label(*stage).substr(0, 2);
  }
  throw UsageError(text);
}

int parse_number(std::string_view text, std::string_view selection) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw UsageError("'" + std::string(selection) +
                     "' does not select stages: give numbers and ranges, such as 00-02 or 00,02");
  }
  return number;
}

}  // namespace

const Stage& find_stage(int number) {
  for (const Stage* stage : stages()) {
    if (stage->number == number) return *stage;
  }
  no_such_stage(std::to_string(number));
}

const Stage* backward_before(const Stage& stage) {
  for (const Stage* one = &stage; one->before != one->number;) {
    one = &on_backend(find_stage(one->before), stage.backend);
    if (one->backward != nullptr) return one;
  }
  return nullptr;
}

std::vector<const Stage*> select_stages(std::string_view selection) {
  std::set<int> chosen;
  for (std::string_view rest = selection;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    const int first = parse_number(part.substr(0, dash), selection);
    const int last = dash == part.npos ? first : parse_number(part.substr(dash + 1), selection);
    if (last < first)
      throw UsageError("'" + std::string(part) + "' runs backwards: give " + std::to_string(last) + "-" +
                       std::to_string(first));
    std::size_t found = 0;
    for (const Stage* stage : stages()) {
      if (first <= stage->number && stage->number <= last) {
        chosen.insert(stage->number);
        ++found;
      }
    }
    // Both ends of a range must exist: a range that silently lacks a stage would pass for a complete climb.
    if (found == 0) no_such_stage(part);
    find_stage(first);
    find_stage(last);
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::vector<const Stage*> result;
  result.reserve(chosen.size());
  for (int number : chosen) result.push_back(&find_stage(number));
  return result;
}

}  // namespace flashladder
