#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/check/check.hpp"
#include "common/labs/claim.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/process.hpp"
#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// What a grade is the sum of.
struct Item {
  std::string name;      ///< Of a family of inputs, a counter, or "all": for machines.
  std::string title;     ///< For people.
  int most = 0;          ///< Points that there are.
  int points = 0;        ///< Points that it has.
  bool reached = false;  ///< Whether it would have them all if the outputs were right.
  std::string feedback;  ///< What is missing; "" where nothing is.
};

/// Items of one kind.
struct Part {
  std::string name;         ///< "correct", "idea", "claim" or "clean".
  std::string title;        ///< For people.
  std::vector<Item> items;  ///< In the order in which they are shown.

  int most() const;    ///< Points that there are.
  int points() const;  ///< Points that it has.
};

/// A count of the claim, as a submission has it.
struct Count {
  std::string counter;                ///< Its name.
  bool reached = false;               ///< Whether it keeps the claim's rule in all cases.
  std::vector<std::int64_t> counted;  ///< In each of the cases that came to an end.
};

/// What came of a submission.
struct Grade {
  std::uint64_t seed = 0;     ///< Of the inputs.
  std::string refused;        ///< Why the file is not accepted: it breaks a rule; "" where it does not.
  std::string compile_error;  ///< The compiler's first error; "" where there is a program.
  std::string log;            ///< All that the compiler said.
  int warnings = 0;           ///< Of the compiler, in the student's file.
  std::vector<Part> parts;    ///< All of them, whatever was reached.
  std::vector<Count> counts;  ///< In the order of Grader::counters().
  std::string printed;        ///< What the program printed.
  bool whole = true;          ///< Whether all was run; else GradeSettings::enough was told of a part.

  int most() const;    ///< Points that there are.
  int points() const;  ///< Points that it has.
  /// The part of that name.
  const Part& part(std::string_view name) const;
};

class CompiledHeaders;

/// How to grade.
struct GradeSettings {
  std::optional<std::uint64_t> seed;  ///< Instead of the hash of the file.
  Limits limits;                      ///< For each of the program's runs.
  /// Asked when the first family and the counted cases have run, with what is said of them: whether that is
  /// all that is to be known. Null: all is run.
  std::function<bool(const Grade&)> enough = nullptr;
  const CompiledHeaders* headers = nullptr;  ///< Included before what is handed in; null: none.
};

/// Grades what is handed in for one lab.
class Grader {
 public:
  /// `lab` must outlive it.
  explicit Grader(const Lab& lab);

  /// Compiles `text` as the lab's file, runs it, judges it. Several threads may grade at a time.
  Grade grade(const std::string& text, const GradeSettings& settings) const;

  /// The parts and items, without points: what the handout promises.
  const std::vector<Part>& parts() const { return parts_; }
  /// The counts of the claim.
  const std::vector<Counter>& counters() const { return counters_; }
  /// The cases that they are counted on.
  const std::vector<Job>& counted_cases() const { return counted_cases_; }

 private:
  const Lab& lab_;
  std::vector<Job> counted_cases_;
  std::vector<Counter> counters_;
  std::vector<Part> parts_;
};

/// The verdict on the outputs of a job that came to its end, and on what became of its extra memory.
Verdict check_result(const Job& job, const Report& report);

/// While there is one, inputs, and what is right on them, are made once for all gradings that have them:
/// those of one seed. Takes some 250 MiB.
class KeepInputs {
 public:
  KeepInputs();
  ~KeepInputs();
  KeepInputs(const KeepInputs&) = delete;
  KeepInputs& operator=(const KeepInputs&) = delete;
};

/// Divides `points` among `count` items, as evenly as whole numbers can.
std::vector<int> shares(int points, std::size_t count);

}  // namespace flashladder::lab
