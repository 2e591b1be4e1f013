#pragma once
#include <string>

#include "common/claims/symbols.hpp"
#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// Where the gradients of a job differ from `oracle` by more than rounding: which of the three do, and
/// where in them, if that is not everywhere: "dQ is right. Wrong in dK are keys 32 to 63 only." "" where
/// none do.
std::string gradients_wrong(const Job& job, const Gradients<float>& got, const Gradients<double>& oracle);

/// The mistake that gives just these wrong gradients, for each that is wrong: "dQ is as if D were left
/// out".
/// "" where no mistake that is often made gives them.
/// @param tile  of the stage: its rows and keys may be missing
std::string gradient_mistake(const Job& job, const Gradients<float>& got, const Gradients<double>& oracle,
                             const ClaimedTile& tile);

}  // namespace flashladder::lab
