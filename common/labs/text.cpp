#include "common/labs/text.hpp"

#include <sstream>

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

}  // namespace flashladder::lab
