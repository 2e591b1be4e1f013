#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/attention/stage.hpp"
#include "common/claims/closed_form.hpp"
#include "common/simt/emulator.hpp"

namespace flashladder {

/// Runs `stage`, as compiled for the emulator, once on for_stage(stage, inputs) and returns what it
/// counted, all kernels together.
/// @param launches  receives the ledger of each kernel when not null.
simt::Ledger count_forward(const Stage& stage, const Inputs& inputs, const simt::Options& options = {},
                           std::vector<simt::Ledger>* launches = nullptr);

/// The same for the backward pass.
simt::Ledger count_backward(const Stage& stage, const Inputs& inputs, const simt::Options& options = {},
                            std::vector<simt::Ledger>* launches = nullptr);

/// A pass of a stage of kernels: how it is counted, and what its claim says of it.
struct CountedPass {
  Pass pass;                          ///< Which it is.
  std::string_view name;              ///< "forward" or "backward".
  decltype(&count_forward) count;     ///< count_forward or count_backward.
  std::span<const ClosedForm> forms;  ///< Of the stage's claim, claim_of().
};

/// The passes that a stage of kernels has.
std::vector<CountedPass> passes_of(const Stage& stage);

}  // namespace flashladder
