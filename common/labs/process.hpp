#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/error.hpp"

namespace flashladder::lab {

/// An interrupt came while a program ran.
struct Interrupted : Error {
  using Error::Error;
};

/// A folder of its own for what is made on the way; removed with all in it.
class TemporaryFolder {
 public:
  /// Throws Error where there is no room for one.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// Where it is.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// What a program may take. 0: as much as it likes.
struct Limits {
  int seconds = 0;  ///< Of processor time, each process of its own; by the clock, ten times as much.
  bool must_compute = true;  ///< It is also stopped when it has used hardly any of that time by the clock.
  std::int64_t memory = 0;   ///< Bytes of address space.
};

/// What a student's program may take in each of its runs unless a grader says otherwise: seconds of
/// processor time, MiB of memory. The longest run of lab 13's reference has taken 9 s, on two cores with
/// other work.
inline constexpr int usual_seconds = 20, usual_mebibytes = 2048;

/// How to run a program.
struct Start {
  std::vector<std::string> command;    ///< The program, looked for on the PATH, and its arguments.
  std::filesystem::path folder;        ///< Where it runs.
  Limits limits = {};                  ///< What it may take.
  bool own_environment = false;        ///< None of this program's variables but those that are kept.
  std::vector<std::string> kept = {};  ///< Their names.
  std::filesystem::path jobs = {};     ///< What it finds at job_fd; it then has a report_fd too.
};

/// How a program ended.
struct Ended {
  bool started = false;      ///< Whether it could be run at all.
  bool out_of_time = false;  ///< It was stopped, because its time by the clock was over.
  int status = 0;            ///< As waitpid gives it.
  double seconds = 0;        ///< Of processor time that it took.
  std::string output;        ///< What it printed; the first 64 KiB of it.
  bool output_cut = false;   ///< Whether it printed more.
  bool flooded = false;      ///< It was stopped, because it printed more than anybody reads.
  std::string reports;       ///< What it wrote to report_fd.
};

/// Runs a program to its end, in a process group of its own, of which nothing is left behind. Throws
/// Interrupted when an interrupt comes that an Uninterrupted keeps, and Error where the system has no room
/// for one more program.
Ended run_program(const Start& start);

}  // namespace flashladder::lab
