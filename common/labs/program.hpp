#pragma once
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/stage.hpp"
#include "common/labs/operations.hpp"
#include "common/labs/process.hpp"
#include "common/labs/program/message.hpp"
#include "common/labs/rules.hpp"

namespace flashladder::lab {

/// What the compiler said.
struct Compiled {
  bool ok = false;        ///< Whether there is a program.
  std::string refused;    ///< Why the file is not accepted (rules.hpp); "" where it is. Then it never runs.
  std::string error;      ///< The first error, with the line of the student's file; "" where there is none.
  int warnings = 0;       ///< In the student's file.
  std::string log;        ///< All of it.
  bool doubtful = false;  ///< Whether it may be the machine, and not the file, that let it fail.
};

/// What came of the jobs that a program was given.
struct Answers {
  std::vector<Report> reports;  ///< Of the jobs that came to an end, in their order.
  std::string ended;            ///< Why the program ended before the last job did, as a sentence; else "".
  bool out_of_time = false;     ///< Whether that was because it took too long.
  std::string output;           ///< What it printed.
};

/// The headers that a file includes, compiled. Files of the same stage that include them take less time to
/// compile then, and become the same machine code.
class CompiledHeaders {
 public:
  /// Of the lines of `text` that include one. Throws Error as Program does.
  CompiledHeaders(const Stage& stage, const std::string& text);
  /// What is to be included before all else.
  std::filesystem::path path() const;

 private:
  TemporaryFolder folder_;
};

/// The program made of a student's file.
class Program {
 public:
  /// Compiles `text` as `file` with the compiler and the flags that the ladder itself was built with, and
  /// links it with the emulator; for Backend::cuda with nvcc, to run on this machine's GPU. `folder` is
  /// where the program comes to lie, `limits` what each of its runs may take: on a GPU, of time only.
  /// `headers` may be null. Throws Error where the build, or the compiler, is not there.
  Program(const Stage& stage, const std::string& file, const std::string& text,
          const std::filesystem::path& folder, const Limits& limits, Backend backend = Backend::emulator,
          const CompiledHeaders* headers = nullptr);

  /// What the compiler said. The rest needs a program.
  const Compiled& compiled() const { return compiled_; }
  /// What the file is to define.
  const Stage& stage() const { return stage_; }
  /// Its name.
  const std::string& file() const { return file_; }
  /// What each run may take.
  const Limits& limits() const { return limits_; }

  /// Runs `jobs` in one process.
  Answers run(const std::vector<Job>& jobs) const;

  /// "attention.cu:57": the innermost of `calls` that is in the student's file; "" where none is.
  std::string place_of(const std::vector<std::uint64_t>& calls) const;

 private:
  bool compile(const std::vector<std::string>& command, int seconds, std::int64_t memory);
  void count_operations(Answers& answers) const;
  std::string why_ended(const Ended& ended, const std::optional<Crash>& crash) const;

  const Stage& stage_;
  std::string file_;
  std::filesystem::path folder_;
  Limits limits_;
  Backend backend_;
  Compiled compiled_;
  mutable std::mutex code_mutex_;
  mutable std::optional<MachineCode> code_;  ///< Once it is asked for.
};

/// The words of a shell command; quotes and backslashes as CMake writes them.
std::vector<std::string> shell_words(std::string_view command);

/// The first error in what a compiler said of `file`, with the line in `file` that it is about.
std::string first_error(const std::string& log, const std::string& file);

}  // namespace flashladder::lab
