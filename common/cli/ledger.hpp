#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention/tensor.hpp"
#include "common/cli/input.hpp"

namespace flashladder {

/// What `ledger` is asked to do.
struct LedgerOptions {
  std::vector<std::string> stages;  ///< Selections, in order; empty is all stages of kernels with the pass.
  InputOptions input;               ///< Random of size `default_sizes` unless it names another.
  std::string backend = "emulator";
  Pass pass = Pass::forward;
  bool json = false;
  bool trace = false;      ///< With `json`: the steps of all warps, too.
  std::optional<int> row;  ///< With `trace`: which row of the first head it follows; else the last.
  bool launches = false;   ///< A column for each launch of one stage.
  bool banks = false;      ///< Count wavefronts and sectors too.
  bool check = false;      ///< Look for races, uninitialised reads, missing waits, endless loops too.
};

/// The problem that `ledger` counts on unless told otherwise, as --random takes it.
inline constexpr const char* default_sizes = "1,2,256,64";

/// load_inputs, of random input of size `default_sizes` where the options name none.
LoadedInputs load_or_default(InputOptions options);
/// The row that a trace follows: that of the option, or the last. Throws UsageError where there is none
/// such.
int traced_row(const std::optional<int>& row, const Problem& problem);

/// Prints what stages of kernels move and compute, side by side, with their closed forms; with backend
/// "cuda" runs each once on the GPU instead.
/// @return 0, or 1 when a count is not its closed form.
int ledger(const LedgerOptions& options);

/// A ledger in the few numbers that stages are compared by.
struct LedgerSummary {
  std::int64_t hbm_bytes_read = 0;     ///< Requested, before caches; atomics included.
  std::int64_t hbm_bytes_written = 0;  ///< Likewise.
  std::int64_t shared_bytes = 0;       ///< Read and written.
  std::int64_t barriers = 0;           ///< Of blocks and of parts of them.
  std::int64_t operations = 0;         ///< Additions, multiplications, divisions, max, exp, log.
  std::int64_t matmul_flops = 0;       ///< On CUDA cores and tensor cores.
  std::int64_t tiles = 0;              ///< Tiles of scores visited.
  std::int64_t masked_tiles = 0;       ///< Those of them that were masked.
  std::int64_t blocks = 0;             ///< Of all launches.
  std::int64_t extra_bytes = 0;        ///< Device memory beyond the tensors.

  /// A number of it, for tables and JSON.
  struct Field {
    const char* key;
    const char* title;
    std::int64_t LedgerSummary::*member;
    bool bytes;
  };
  /// All of them, in order of declaration.
  static std::span<const Field> fields();
};

/// Calls `run` and returns what the emulator counted in it.
LedgerSummary count_launches(const std::function<void()>& run);

}  // namespace flashladder
