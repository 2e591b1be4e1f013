#include "common/cli/version.hpp"

#include <algorithm>
#include <cstdio>

#include "common/io/terminal.hpp"

namespace flashladder {

std::string commit() {
  const std::string command =
      "git -C " + shell_word(FLASHLADDER_SOURCE_DIR) + " describe --always --dirty --abbrev=12 2>/dev/null";
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char buffer[128];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
    pclose(pipe);
  }
  text.erase(std::min(text.find('\n'), text.size()));
  return text.empty() ? "unknown" : text;
}

std::string version_text() {
  return "FlashLadder " FLASHLADDER_VERSION ", commit " + commit();
}

}  // namespace flashladder
