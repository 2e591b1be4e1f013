#include "common/io/terminal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <system_error>

namespace flashladder {
namespace {

/// Characters of UTF-8 text.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

void open_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
      open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);  // the lowest number that is free: fd
  }
  // A handler, since programs that this one starts would inherit that a signal is ignored.
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

namespace {
int stdout_error = 0;  ///< The first, as errno has it.
}

void print_text(std::string_view text) {
  if (stdout_error != 0) return;  // a reader that has missed something must not go on as if it had not
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    stdout_error = errno;
}

void complain_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

bool written_streams() {
  if (stdout_error == 0 || stdout_error == EPIPE) return true;
  complain("ladder: cannot write to stdout: {}; what is above is not all of it\n",
           std::generic_category().message(stdout_error));
  return false;
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_) complain("\r\x1b[K");
}

void Progress::step(const std::string& text) {
  if (terminal_) {
    // What went on in a second line would not be wiped.
    const std::size_t width = terminal_width(STDERR_FILENO);
    const std::vector<std::string> lines = wrap(text, width > 8 ? width - 4 : 0, "");
    complain("\r\x1b[K{}{}", lines[0], lines.size() > 1 ? " ..." : "");
  } else {
    complain("{}\n", text);
  }
}

void Progress::repetition(const std::string& text) {
  if (terminal_) step(text);
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  return fmt::format("{}", fmt::join(parts, between));
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./,:=@%+-";
  if (!word.empty() && word.find_first_not_of(plain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string duration_text(double seconds) {
  if (seconds < 99.5) return fmt::format("{:.0f} s", seconds);
  if (seconds < 99.5 * 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.{}f} h", seconds / 3600, seconds < 36000 ? 1 : 0);
}

std::string bytes_text(std::int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 0x1p30) return fmt::format("{:.2f} GiB", b / 0x1p30);
  if (b >= 0x1p20) return fmt::format("{:.2f} MiB", b / 0x1p20);
  if (b >= 0x1p10) return fmt::format("{:.1f} KiB", b / 0x1p10);
  return fmt::format("{} B", bytes);
}

std::string grouped(std::int64_t count) {
  std::string text = fmt::format("{}", count);
  const std::size_t sign = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > sign + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string short_text(std::int64_t count) {
  const double c = static_cast<double>(count);
  for (const auto& [unit, name] : {std::pair(1e12, "T"), {1e9, "G"}, {1e6, "M"}}) {
    if (c < 0.9995 * unit) continue;  // 999,600,000 is 1.00 G, not 1000 M
    const double value = c / unit;
    return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, name);
  }
  return grouped(count);
}

std::string render_table(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> width(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], width_of(row[c]));
  }
  std::string text;
  std::size_t total = 2 * (width.size() - 1);
  for (const std::size_t w : width) total += w;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const std::string space(width[c] - width_of(rows[r][c]), ' ');
      line += c == 0 ? "" : "  ";
      line += c < left ? rows[r][c] + space : space + rows[r][c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0) text += std::string(total, '-') + "\n";
  }
  return text;
}

std::size_t terminal_width(int stream) {
  winsize size{};
  return isatty(stream) != 0 && ioctl(stream, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::vector<std::string> wrap(const std::string& text, std::size_t width, const std::string& indentation) {
  if (width == 0 || width_of(text) <= width) return {text};
  std::vector<std::string> lines = {text.substr(0, text.find_first_not_of(' '))};
  bool empty = true;  // but for what it is indented by
  for (std::size_t at = lines[0].size(); at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (!empty && width_of(lines.back()) + 1 + width_of(word) > width) {
      lines.push_back(indentation);
      empty = true;
    }
    lines.back() += (empty ? "" : " ") + word;
    empty = false;
  }
  return lines;
}

std::string fit(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result += joined(wrap(text.substr(at, end - at), terminal_width(), "  "), "\n");
    if (end < text.size()) result += "\n";
    at = end + 1;
  }
  return result;
}

std::string fit_help(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t column = !line.starts_with("  ") ? 0 : terminal_width() < 72 ? 6 : 30;
    result += joined(wrap(line, terminal_width(), std::string(column, ' ')), "\n") + "\n";
  }
  return result;
}

std::string fit_table(const std::vector<std::vector<std::string>>& rows, std::size_t left,
                      std::size_t width) {
  const std::size_t columns = rows[0].size();
  const auto part = [&](std::size_t first, std::size_t last) {  // the first column, and these
    std::vector<std::vector<std::string>> some;
    for (const auto& row : rows) {
      const auto blank = [](const std::string& cell) { return cell.empty(); };
      if (row[0].empty() && std::all_of(row.begin() + static_cast<std::ptrdiff_t>(first),
                                        row.begin() + static_cast<std::ptrdiff_t>(last), blank))
        continue;  // it goes on in columns of another part
      some.emplace_back(1, row[0]).insert(some.back().end(),
                                          row.begin() + static_cast<std::ptrdiff_t>(first),
                                          row.begin() + static_cast<std::ptrdiff_t>(last));
    }
    return render_table(some, left > first ? left - first + 1 : 1);
  };
  const auto fits = [&](const std::string& text) {  // the line below the titles is as wide as the table
    const std::size_t begin = text.find('\n') + 1;
    return width == 0 || text.find('\n', begin) - begin <= width;
  };
  std::string text;
  std::size_t parts = 0;
  for (std::size_t first = 1; first < columns;) {
    std::size_t last = columns;
    while (last > first + 1 && !fits(part(first, last))) --last;
    if (!fits(part(first, last)) ||
        ++parts >= std::max<std::size_t>(rows.size(), 2)) {  // more parts than rows
      text.clear();
      break;
    }
    text += (text.empty() ? "" : "\n") + part(first, last);
    first = last;
  }
  if (!text.empty() || columns == 1) return text.empty() ? render_table(rows, left) : text;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    if (!rows[r][0].empty()) text += joined(wrap(rows[r][0], width, "  "), "\n") + "\n";
    for (std::size_t c = 1; c < columns; ++c) {
      const std::string& cell = rows[r][c];
      if (cell.find_first_not_of(' ') == cell.npos) continue;
      const std::string value = cell.substr(cell.find_first_not_of(' '));
      const std::string line = "  " + (columns > 2 ? rows[0][c] + ": " : "") + value;
      text += joined(wrap(line, width, "    "), "\n") + "\n";
    }
  }
  return text;
}

}  // namespace flashladder
