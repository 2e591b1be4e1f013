#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/check/turn.hpp"
#include "common/cli/input.hpp"
#include "common/labs/process.hpp"

namespace flashladder::lab {

/// What `lab new` is asked to do.
struct NewOptions {
  std::string stage;   ///< Its number or name.
  std::string folder;  ///< Which must not be there yet.
};

/// What `lab grade` is asked to do.
struct GradeOptions {
  std::string folder;                 ///< As `lab new` wrote it.
  std::string json;                   ///< Where to write the result as JSON; "-" is stdout; empty: nowhere.
  std::optional<std::uint64_t> seed;  ///< Of the inputs, instead of the hash of the file.
  int seconds = usual_seconds;        ///< Of processor time, for each of the program's runs.
  int mebibytes = usual_mebibytes;    ///< Of memory that it may use.
};

/// What `lab check` is asked to do.
struct CheckOptions {
  std::vector<std::string> stages;      ///< Selections; empty is all labs.
  std::size_t most = SIZE_MAX;          ///< Mutants of each lab, and solutions, that are tried.
  std::size_t most_mutants = SIZE_MAX;  ///< Mutants alone.
  Turn turn = {};                       ///< The part of the labs that is checked.
};

/// What `lab trace` is asked to do.
struct TraceOptions {
  std::string folder;      ///< As `lab new` wrote it.
  InputOptions input;      ///< What it runs on.
  std::optional<int> row;  ///< Which row of the first head is followed; else the last.
};

/// Prints the labs, a line each.
int list_labs();

/// The Error of a call without a verb, which names the right one: ./ladder lab 13.
/// @param words  what was given instead of a verb
[[noreturn]] void no_verb(const std::vector<std::string>& words);

/// Writes the folder of a lab.
int make_lab(const NewOptions& options);
/// Grades a folder and prints the result.
/// @return 0 with full marks, else 1. Throws UsageError where nothing could be graded.
int grade_lab(const GradeOptions& options);
/// Runs what is in a folder on the emulator, once, and prints what its warps do as JSON, up to the error
/// that ends it where one does. Throws UsageError where there is nothing to run.
/// @return 0
int trace_lab(const TraceOptions& options);
/// Proves of each lab that its skeleton, its reference, the stage before, the mutants and the solutions
/// with a mistake get the points that they should, and that the feedback names 9 of 10 mistakes of the
/// solutions; prints what they get.
/// @return 0, or 1 when one of them does not.
int check_labs(const CheckOptions& options);

}  // namespace flashladder::lab
