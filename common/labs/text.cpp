#include "common/labs/text.hpp"

#include <fmt/format.h>

#include <sstream>
#include <string_view>

namespace flashladder::lab {

std::string wrapped(const std::string& text, const std::string& indentation, std::size_t width) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string before = indentation + line.substr(0, line.find_first_not_of(' '));
    std::string now;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (!now.empty() && before.size() + now.size() + 1 + word.size() > width) {
        result += before + now + "\n";
        now.clear();
      }
      now += (now.empty() ? "" : " ") + word;
    }
    result += before + now + "\n";
  }
  return result;
}

std::string first_lines(const std::string& text, int most) {
  std::size_t end = 0;
  for (int line = 0; line < most && end != text.npos; ++line)
    end = text.find('\n', end + (line > 0 ? 1 : 0));
  return end == text.npos ? text : text.substr(0, end) + "\n...";
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

std::string numbers_in_words(const char* what, const std::set<std::int64_t>& numbers, std::int64_t count) {
  const std::int64_t first = *numbers.begin(), last = *numbers.rbegin();
  if (std::ssize(numbers) == count) return "";
  if (first == last) return fmt::format("{} {}", what, first);
  const std::string all =
      what == std::string_view("batch entry") ? "batch entries" : fmt::format("{}s", what);
  if (last - first + 1 == std::ssize(numbers)) return fmt::format("{} {} to {}", all, first, last);
  std::string text = all;
  int told = 0;
  for (const std::int64_t number : numbers) {
    if (told == 4) return text + " and more";
    text += fmt::format("{} {}", told++ == 0 ? "" : ",", number);
  }
  return text;
}

}  // namespace flashladder::lab
