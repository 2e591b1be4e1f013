#pragma once
#include <string>

#include "common/attention/oracle.hpp"
#include "common/attention/stage.hpp"

namespace flashladder {

/// Runs `stage` on the emulator, watches what its kernels show by probe(), and says which intermediate is
/// the first that the definition in fp64 does not give: in the order of the key tiles, and within a tile S,
/// m, l, O. One sentence that names it, its head, row and tile; empty when all are right up to rounding.
std::string first_divergence(const Stage& stage, const Inputs& inputs);

}  // namespace flashladder
