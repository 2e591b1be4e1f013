#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flashladder {

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

/// "47.5 KiB"
std::string bytes_text(std::int64_t bytes);

/// "1,048,576"
std::string grouped(std::int64_t count);

/// "18,624", "12.6 M": three digits from a million on, for columns that are compared at a glance.
std::string short_text(std::int64_t count);

/// Columns as wide as their widest cell, under a line below the first row: the first `left` columns to the
/// left, the others, numbers, to the right.
std::string render_table(const std::vector<std::vector<std::string>>& rows, std::size_t left);

/// Columns of the terminal that stdout is; 0 where it is none.
int terminal_width();

}  // namespace flashladder
