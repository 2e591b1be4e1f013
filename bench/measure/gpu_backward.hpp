#pragma once
#include <benchmark/benchmark.h>

#include "bench/measure/gpu_peaks.hpp"
#include "bench/measure/on_gpu.hpp"
#include "common/attention/stage.hpp"

namespace flashladder {

/// Times the backward pass of `stage`, as compiled for a GPU, on random tensors: a run that is checked
/// against fp64 on the last rows and keys of the last head, and everywhere for elements that are no finite
/// numbers, then runs timed as time_on_gpu says. Adds TFLOP/s, of 2.5 times the FLOPs of the forward pass,
/// and the percentages of the peaks that were measured. All heads have keys of their own, and there are as
/// many keys as rows.
Timing time_backward(benchmark::State& state, const Stage& stage, const Problem& p, const Peaks& peaks);

}  // namespace flashladder
