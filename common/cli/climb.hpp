#pragma once
#include <string>
#include <vector>

#include "common/attention/tensor.hpp"
#include "common/cli/input.hpp"

namespace flashladder {

/// What `climb` is asked to do.
struct ClimbOptions {
  InputOptions input;
  bool full = false;  ///< Without a mask. With neither this nor input.causal, or both: with either mask.
  std::vector<std::string> stages;  ///< Selections; none: all that take the head dimension.
  std::string backend = "auto";     ///< Of the stages of kernels: "auto", "emulator" or "cuda".
  std::string out = "out";          ///< Where climb.json and report.html go.
  double patience = 30;  ///< Seconds for the oracles; where they take longer, a sample of rows is judged.
  Pass pass = Pass::forward;  ///< Whose stages run.
  bool memory = false;        ///< Also measure the peak extra memory over N.
  std::int64_t memory_up_to = 65536;
};

/// Runs every selected stage on the input, without a mask and with the causal one, in the dtype that it
/// takes. Checks it against the oracle and the stage before it, times those that pass and are not emulated,
/// counts what those of kernels move and compute, prints the tables, writes climb.json and has report.html
/// drawn.
/// @return 0, or 1 when a stage failed or the report could not be drawn.
int climb(const ClimbOptions& options);

}  // namespace flashladder
