#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/tensor.hpp"

namespace flashladder {

/// What a stage takes. Lengths, GQA, strides and the causal mask are every stage's duty and not listed.
struct Support {
  std::span<const Dtype> dtypes;       ///< Element types it computes in; others are widened to fp32 for it.
  std::int64_t most_d = max_head_dim;  ///< Largest head dimension.
};

inline constexpr Dtype fp32_only[] = {Dtype::fp32};

/// One rung of the ladder. Each folder stages/NN_name defines one; lists, tests, charts and tables follow
/// from it.
struct Stage {
  int number;              ///< NN of its folder; the first digit is the track.
  std::string_view name;   ///< The folder's name is NN_name.
  std::string_view title;  ///< For charts: a word or two.
  std::string_view idea;   ///< One line.
  std::string_view claim;  ///< The number that a test proves, one line.
  int before;              ///< The stage it is measured against; its own number where there is none.
  Support supports;        ///< Dtypes and head dimensions.

  /// Computes O and L.
  void (*forward)(const Forward&);
  /// The same code over an element type that counts how often a score is read; null where the stage has
  /// none.
  void (*forward_counting)(const Forward&) = nullptr;
  /// Computes dQ, dK and dV; null where the stage has no backward pass.
  void (*backward)(const Backward&) = nullptr;
};

/// The dtype `stage` computes in when the input is of `dtype`: the same where it supports it, else fp32, to
/// which every 16-bit value widens exactly.
Dtype computing_dtype(const Stage& stage, Dtype dtype);

/// All stages of this build, in order of their numbers.
std::span<const Stage* const> stages();

/// Stage `number`. Throws UsageError naming the stages there are.
const Stage& find_stage(int number);

/// The stages that a selection such as "00-02", "1,2" or "00,02-15" names, in order.
/// Throws UsageError where it is not one, or names a stage that does not exist.
std::vector<const Stage*> select_stages(std::string_view selection);

/// "02 tiled_cpu"
std::string label(const Stage& stage);

}  // namespace flashladder
