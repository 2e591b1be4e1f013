#pragma once
#include <functional>
#include <string>
#include <vector>

#include "common/labs/grade.hpp"
#include "common/labs/program.hpp"

namespace flashladder::lab {

/// How fast a student's kernels are on this machine's GPU, beside the reference's. No points depend on it:
/// the times are those that the student's own process sends.
struct Speed {
  std::string missing = {};  ///< Why there is none; "" where there is.
  std::string gpu = {};      ///< "NVIDIA H200"
  std::string shape = {};    ///< Of the problem that was timed.
  double ms = 0;             ///< The median of the student's runs, in milliseconds.
  double reference_ms = 0;   ///< That of the reference's.

  /// Above 1 where the student's kernels are the faster ones.
  double ratio() const { return reference_ms / ms; }
};

/// What runs jobs, as Program::run does.
using Runner = std::function<Answers(const std::vector<Job>&)>;

/// Times `student` and `reference` in turns on `timed`, once the student's outputs are right on `checked`,
/// and its last ones on `timed`. What it gives has no name of a GPU yet.
Speed compare_speed(const std::vector<Job>& checked, const Job& timed, const Runner& student,
                    const Runner& reference);

/// The problem that kernels are timed on: causal, of 2048 rows and 32 heads, as large as a GPU needs.
Job timed_case(const Stage& stage);

/// Compiles what was handed in and the lab's reference by nvcc, and compares their speed, where there is a
/// GPU, the lab is one of kernels and all outputs in `grade` are right.
Speed speed_of(const Lab& lab, const std::string& text, const Grade& grade, const Limits& limits);

/// A line for people, without a line break.
std::string words_of(const Speed& speed);

}  // namespace flashladder::lab
