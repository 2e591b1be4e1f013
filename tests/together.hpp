#pragma once
#include "common/attention/stage.hpp"

namespace flashladder {

/// A stage that is no rung: the policies of stages 72 and 74 to 78 on top of each other. It takes all of
/// their features in one call.
extern const Stage together;
/// The same as compiled for a GPU; in a build with CUDA.
extern const Stage together_cuda;

}  // namespace flashladder
