#pragma once
#include <map>
#include <memory>
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

/// What `stage` is given an input of `dtype` in: that dtype where it takes it, or fp32 with the same
/// numbers; else the input is rounded for it, to bf16 where it takes that.
Dtype given_dtype(const Stage& stage, Dtype dtype);

/// Right results first, a stage at a time, each computed once however many stages are compared with it.
class Checker {
 public:
  /// @param inputs  that all stages are given, which must outlive it: a stage and the one before it can be
  /// compared
  /// @param sampled  whether a sample of the rows is judged; not of the backward pass
  Checker(const Inputs& inputs, Pass pass, Progress& progress, bool sampled = false);

  /// How many rows of a sample are judged.
  std::int64_t judged_rows() const;
  /// What `stage` computes in.
  Dtype dtype(const Stage& stage) const { return computing_dtype(stage, inputs_.problem.dtype); }

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

  /// The stage that this pass of `stage` is measured against; nullptr where there is none.
  static const Stage* before(const Stage& stage, Pass pass);
  const Stage* before(const Stage& stage) const { return before(stage, pass_); }

  /// `stage`, which has passed, against another that has.
  Verdict against(const Stage& stage, const Stage& other);

  /// Calls `use` with the pass of `stage`, ready to run.
  template <class Use>
  void with_run(const Stage& stage, Use use) {
    if (pass_ == Pass::backward) {
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
  /// For what is said of its run: "15 fa2_causal_skip, causal".
  std::string name(const Stage& stage) const;

  const Inputs& inputs_;
  Pass pass_;
  Progress& progress_;
  std::vector<Chunk> sample_;  ///< None where all rows are judged.
  std::vector<float> dO_;
  Result<float> saved_;  ///< O and L, which a backward pass is given.
  std::map<Dtype, std::unique_ptr<Right>> right_;
  std::map<int, Checked> checked_;
};

}  // namespace flashladder
