#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/check/check.hpp"
#include "common/check/inputs.hpp"
#include "common/check/sample.hpp"
#include "common/cli/ledger.hpp"
#include "common/io/terminal.hpp"

namespace flashladder {

/// What the emulator says in several lines, in one.
std::string one_line(std::string text);

/// Right results first, a stage at a time, each computed once however many stages are compared with it.
class Checker {
 public:
  /// @param patience  seconds for the oracle of all rows; where it takes longer, a sample of them is
  /// judged. Without it nothing is judged.
  Checker(const Inputs& inputs, bool backward, Progress& progress, std::optional<double> patience = {});

  /// The rows that are judged; none where all are.
  const std::vector<Chunk>& sample() const { return sample_; }
  /// How many they are.
  std::int64_t judged_rows() const;
  /// How long the oracle of all rows takes, about.
  double seconds_for_all() const { return seconds_for_all_; }

  /// What came of a stage.
  struct Checked {
    Verdict verdict;
    Result<float> result;        ///< Of the forward pass.
    Gradients<float> gradients;  ///< Of the backward pass.
    LedgerSummary ledger;        ///< Of an emulated stage.
    std::int64_t extra_bytes = 0;
    bool out_of_memory = false;
  };

  /// Runs `stage` against the oracle, the first time that it is asked for.
  const Checked& check(const Stage& stage);

  /// The stage that the pass of `stage` is measured against; nullptr where there is none.
  const Stage* before(const Stage& stage) const;

  /// `stage`, which has passed, against another that has.
  Verdict against(const Stage& stage, const Stage& other);

  /// Calls `use` with the pass of `stage`, ready to run.
  template <class Use>
  void with_run(const Stage& stage, Use use) {
    if (backward_) {
      BackwardRun run(stage, inputs_, saved_, dO_);
      use(run);
    } else {
      ForwardRun run(stage, inputs_);
      use(run);
    }
  }

 private:
  /// What is right in a dtype.
  struct Right {
    Expected forward;  ///< Of a sample: bounds alone.
    ExpectedSample sample;
    ExpectedGradients gradients;
  };

  const Right& right_for(const Stage& stage);

  const Inputs& inputs_;
  bool backward_;
  Progress& progress_;
  double seconds_for_all_ = 0;  ///< How long that takes, about.
  std::vector<Chunk> sample_;
  std::vector<float> dO_;
  Result<float> saved_;  ///< O and L, which a backward pass is given.
  std::map<Dtype, std::unique_ptr<Right>> right_;
  std::map<int, Checked> checked_;
};

}  // namespace flashladder
