#pragma once
#include <string>
#include <vector>

#include "common/cli/climb_check.hpp"

namespace flashladder {

/// The quantile q of sorted times.
double quantile(const std::vector<double>& sorted, double q);

/// What became of one stage under one mask.
struct Climbed {
  const Stage* stage = nullptr;
  Dtype dtype = Dtype::fp32;  ///< That it computed in.
  /// "passed", "failed", "cannot be judged" (on these inputs, since they would not show what is wrong) or
  /// "out of memory".
  std::string status = "failed";
  std::string why;                   ///< Why not passed.
  Verdict oracle, before;            ///< `before` is not checked where there is no stage before.
  const Stage* yardstick = nullptr;  ///< The stage before; nullptr where there is none.
  const Stage* compared = nullptr;   ///< The same where it is right.
  std::int64_t extra_bytes = 0;      ///< Peak extra memory; what it would have been where that did not fit.
  std::vector<double> ms;            ///< Sorted; empty unless passed, and where emulated.
  LedgerSummary ledger;              ///< Of a stage of kernels that passed.
  bool disturbed = false;            ///< Other programs ran on the same cores meanwhile.

  bool passed() const { return status == "passed"; }
  bool emulated() const { return stage->backend == Backend::emulator; }
  bool counted() const { return passed() && stage->backend != Backend::cpu; }
  bool timed() const { return !ms.empty(); }
  double median() const { return quantile(ms, 0.5); }
};

/// Checks a stage, counts what its kernels do, and times it where it has passed and is not emulated.
Climbed climb_stage(const Stage& stage, Checker& checker, Progress& progress);

}  // namespace flashladder
