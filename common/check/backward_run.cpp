// Apart from run.cpp, which a student's program is linked with: this needs the oracle's plain computations,
// which it must not have.
#include "common/check/run.hpp"

namespace flashladder {

BackwardRun::BackwardRun(const Stage& stage, const Inputs& inputs, const Result<float>& forward,
                         const std::vector<float>& dO, Layout layout)
    : Run(stage, inputs.problem, layout) {
  tensor("Q").write(inputs.Q);
  tensor("K").write(inputs.K);
  tensor("V").write(inputs.V);
  tensor("O").write(forward.O);
  tensor("L").write(forward.L);
  tensor("dO").write(dO);
  if (stage.saved == Saved::L) return;
  const Statistics saved = plain_statistics(inputs, stage.saved == Saved::P);
  if (stage.saved == Saved::P) {
    tensor("P").write(saved.P);
  } else {
    tensor("m").write(saved.m);
    tensor("l").write(saved.l);
  }
}

Gradients<float> BackwardRun::result() const {
  return {tensor("dQ").read(), tensor("dK").read(), tensor("dV").read()};
}

}  // namespace flashladder
