#include "common/labs/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "common/error.hpp"

namespace flashladder::lab {
namespace {

constexpr std::size_t columns = 108;  // of a line, as in .clang-format
constexpr std::string_view begin_mark = "// lab: ", more_mark = "//   ",
                           given_mark = "// given: ", end_mark = "// end of lab";

/// Without the spaces before it.
std::string_view trimmed(std::string_view line) {
  const std::size_t first = line.find_first_not_of(' ');
  return first == line.npos ? "" : line.substr(first);
}

/// `text` as a comment of lines no longer than `columns`.
std::string comment(const std::string& text, const std::string& indentation) {
  std::istringstream words(text);
  std::string result, line = indentation + "//";
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > columns) {
      result += line + "\n";
      line = indentation + "//  ";
    }
    line += " " + word;
  }
  return result + line + "\n";
}

/// One pass over the lines of a source.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  void take(std::string_view line) {
    ++number_;
    const std::string_view text = trimmed(line);
    if (text.starts_with(begin_mark)) {
      begin(text.substr(begin_mark.size()), line.size() - text.size());
    } else if (text == end_mark) {
      end();
    } else if (part_ == Part::outside) {
      add(source_.reference, line);
      add(source_.skeleton, line);
    } else {
      take_inside(line, text);
    }
  }
  Source finish() {
    if (part_ != Part::outside) fail("the lab that begins here has no '// end of lab'", begun_);
    return std::move(source_);
  }

 private:
  enum class Part { outside, task, given, code };

  [[noreturn]] void fail(const std::string& what, int line) const {
    throw Error(fmt::format("{}:{}: {}: docs/labs.md has the syntax of the markers", name_, line, what));
  }
  static void add(std::string& text, std::string_view line) {
    text += line;
    text += '\n';
  }
  void begin(std::string_view task, std::size_t indentation) {
    if (part_ != Part::outside) fail("a lab inside another", number_);
    begun_ = number_;
    part_ = Part::task;
    indentation_ = std::string(indentation, ' ');
    source_.regions.push_back({std::string(task), 0});
    given_.clear();
  }
  void take_inside(std::string_view line, std::string_view text) {
    Region& region = source_.regions.back();
    if (part_ == Part::task && text.starts_with(more_mark)) {
      region.task += " " + std::string(trimmed(text.substr(more_mark.size())));
    } else if (text.starts_with(given_mark)) {
      if (part_ == Part::code) fail("'// given:' stands behind code that the student writes", number_);
      part_ = Part::given;
      given_ += indentation_ + std::string(text.substr(given_mark.size())) + "\n";
    } else {
      part_ = Part::code;
      region.lines += !text.empty() && !text.starts_with("//");
      add(source_.reference, line);
    }
  }
  void end() {
    if (part_ == Part::outside) fail("the end of a lab that has not begun", number_);
    const Region& region = source_.regions.back();
    source_.skeleton += comment(fmt::format("TODO (about {} line{}): {}", region.lines,
                                            region.lines == 1 ? "" : "s", region.task),
                                indentation_) +
                        given_;
    part_ = Part::outside;
  }

  std::string name_;
  Source source_;
  Part part_ = Part::outside;
  int number_ = 0, begun_ = 0;
  std::string indentation_, given_;
};

}  // namespace

int Source::lines() const {
  return std::transform_reduce(regions.begin(), regions.end(), 0, std::plus(),
                               [](const Region& region) { return region.lines; });
}

Source read_source(std::string_view text, const std::string& name) {
  Reader reader(name);
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) reader.take(line);
  return reader.finish();
}

std::string Handout::hint(std::string_view counter, bool too_many) const {
  const auto found = std::ranges::find_if(
      hints, [&](const Hint& hint) { return hint.counter == counter && hint.too_many == too_many; });
  return found == hints.end() ? "" : found->text;
}

Handout read_handout(std::string_view text, const std::string& name) {
  constexpr std::string_view heading = "## Feedback", many = " too many: ", few = " too few: ";
  Handout handout;
  std::istringstream lines{std::string(text)};
  bool in_feedback = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("## ")) in_feedback = line == heading;
    if (!in_feedback) {
      handout.text += line + "\n";
    } else if (line.starts_with("- ")) {
      const std::size_t at_many = line.find(many), at_few = line.find(few);
      const std::size_t at = std::min(at_many, at_few);
      if (at == line.npos || line.find(' ', 2) != at) {
        throw Error(fmt::format("{}:{}: '- COUNTER too many: ...' or '- COUNTER too few: ...' is expected",
                                name, number));
      }
      const bool too_many = at == at_many;
      handout.hints.push_back(
          {line.substr(2, at - 2), too_many, line.substr(at + (too_many ? many : few).size())});
    } else if (line.starts_with("  ") && !handout.hints.empty()) {
      handout.hints.back().text += " " + std::string(trimmed(line));
    } else if (line != heading && !line.empty()) {
      throw Error(
          fmt::format("{}:{}: this is no hint: a line begins with '- COUNTER too many: '", name, number));
    }
  }
  while (handout.text.ends_with("\n\n")) handout.text.pop_back();
  return handout;
}

}  // namespace flashladder::lab
