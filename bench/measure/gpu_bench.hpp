#pragma once

namespace flashladder {

/// Registers the stages of kernels for a GPU with Google Benchmark, the GPU's peaks before them, and what
/// they are to be read with as its context; nothing where there is no GPU. A filter that selects one of the
/// stages selects the peaks too; so it must have been read, by benchmark::Initialize. A stage that fails
/// its check is never timed: `any_failed` becomes true.
void register_gpu_benchmarks(bool& any_failed);

}  // namespace flashladder
