#pragma once
// What the pace of measurements takes of a GPU.

namespace flashladder {

/// One thread of the GPU waits for 10 ms; the host does not. Throws Error where the GPU reports one.
void rest_on_gpu();

/// FLOPs of 16-bit numbers in a clock of all tensor cores, without sparsity; 0 where that is not known.
double tensor_flops_per_clock();

}  // namespace flashladder
