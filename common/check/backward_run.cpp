// Apart from run.cpp, which a student's program is linked with: this needs the oracle's plain computations,
// which it must not have.
#include "common/check/run.hpp"

namespace flashladder {

BackwardInputs backward_inputs(const Stage& stage, const Inputs& inputs, const Result<float>& forward,
                               const std::vector<float>& dO) {
  BackwardInputs given{forward, {}, dO};
  if (stage.saved != Saved::L) given.saved = plain_statistics(inputs, stage.saved == Saved::P);
  return given;
}

BackwardRun::BackwardRun(const Stage& stage, const Inputs& inputs, const Result<float>& forward,
                         const std::vector<float>& dO, Layout layout)
    : BackwardRun(stage, inputs, backward_inputs(stage, inputs, forward, dO), layout) {}

}  // namespace flashladder
