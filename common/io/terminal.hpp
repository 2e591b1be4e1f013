#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashladder {

/// Makes the standard streams safe to use, first thing in main: one that is closed is opened on /dev/null,
/// so that no file gets its number, and a reader that has gone or a file that has grown too large is an
/// error of the write and ends nothing.
void open_streams();

/// Writes to stdout. Never throws, so that what was computed still gets to its file: written_streams()
/// tells.
void print_text(std::string_view text);
/// Writes to stderr, as far as that can be.
void complain_text(std::string_view text);

template <class... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Whether all that was printed has got to stdout; where it has not, says so on stderr, but for a reader
/// that wanted no more, such as head.
bool written_streams();

/// One line on stderr that is overwritten on a terminal; in a log, a line for each step that is not a mere
/// repetition.
class Progress {
 public:
  Progress();
  ~Progress();  ///< Wipes the line.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is being done now.
  void step(const std::string& text);
  /// The same once more, such as another timed run: of interest only while one waits.
  void repetition(const std::string& text);

 private:
  bool terminal_;
};

/// The parts, with `between` between two of them.
std::string joined(const std::vector<std::string>& parts, std::string_view between);

/// A word as a shell reads it: quoted where it has to be.
std::string shell_word(const std::string& word);

/// "40 s", "12 min", "3.5 h"
std::string duration_text(double seconds);

/// "47.5 KiB"
std::string bytes_text(std::int64_t bytes);

/// "1,048,576"
std::string grouped(std::int64_t count);

/// "18,624", "12.6 M": three digits from a million on, for columns that are compared at a glance.
std::string short_text(std::int64_t count);

/// Columns as wide as their widest cell, under a line below the first row: the first `left` columns to the
/// left, the others, numbers, to the right.
std::string render_table(const std::vector<std::vector<std::string>>& rows, std::size_t left);

/// Columns of the terminal that a stream is; 0 where it is none, and nothing is made to fit.
std::size_t terminal_width(int stream = STDOUT_FILENO);

/// `text` in lines of up to `width` characters, broken at spaces, all but the first after `indentation`; a
/// line where `width` is 0.
std::vector<std::string> wrap(const std::string& text, std::size_t width, const std::string& indentation);

/// Each line of `text` wrapped to the terminal.
std::string fit(const std::string& text);
/// The same of a list of options, whose descriptions stay below each other.
std::string fit_help(const std::string& text);
/// print, with lines that are no wider than the terminal.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fit(fmt::format(format, std::forward<Args>(args)...)));
}

/// As render_table, but never wider than `width`, unless that is 0: columns that have no room stand below
/// the others, and where there is room for none beside the first, one cell stands below the other.
std::string fit_table(const std::vector<std::vector<std::string>>& rows, std::size_t left,
                      std::size_t width);

}  // namespace flashladder
