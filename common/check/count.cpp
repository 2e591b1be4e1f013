#include "common/check/count.hpp"

#include "common/check/inputs.hpp"
#include "common/check/run.hpp"

namespace flashladder {

simt::Ledger count_forward(const Stage& stage, const Inputs& inputs, const simt::Options& options,
                           std::vector<simt::Ledger>* launches) {
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
  const Inputs own = for_stage(stage, inputs);
  ForwardRun run(stage, own);
  Workspace workspace;
  run.run(workspace);
  if (launches != nullptr) *launches = emulator.launches();
  return emulator.total();
}

simt::Ledger count_backward(const Stage& stage, const Inputs& inputs, const simt::Options& options,
                            std::vector<simt::Ledger>* launches) {
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
  const Inputs own = for_stage(stage, inputs);
  BackwardRun run(stage, own, saved_forward(own), random_output_gradient(own.problem, 1));
  Workspace workspace;
  run.run(workspace);
  if (launches != nullptr) *launches = emulator.launches();
  return emulator.total();
}

std::vector<CountedPass> passes_of(const Stage& stage) {
  std::vector<CountedPass> passes;
  const Claim& claim = *claim_of(stage);
  if (stage.forward != nullptr)
    passes.push_back({Pass::forward, "forward", count_forward, claim.forward.forms});
  if (stage.backward != nullptr)
    passes.push_back({Pass::backward, "backward", count_backward, claim.backward.forms});
  return passes;
}

}  // namespace flashladder
