#pragma once
#include "bench/measure/on_gpu.hpp"
#include "common/attention/tensor.hpp"

namespace flashladder {

/// What this GPU did at most in this run: what the results of stages are percentages of. 0 where it was not
/// measured.
struct Peaks {
  double gemm_bf16 = 0;  ///< FLOP/s of a matrix product in bf16, added up in fp32.
  double gemm_fp32 = 0;  ///< FLOP/s of one in fp32, without TF32.
  double copy = 0;       ///< Bytes/s, read and written together, of a copy in device memory.

  /// FLOP/s of the matrix product in `dtype`.
  double gemm(Dtype dtype) const;
};

/// Registers the benchmarks peak/gemm_bf16, peak/gemm_fp32 and peak/copy, which set `peaks`; none where the
/// build has no cuBLAS. One that fails its check sets `any_failed` and no peak.
void register_gpu_peaks(Peaks& peaks, bool& any_failed);

/// Adds the speed of a pass to its benchmark's results: TFLOP/s, in 16 bits the share of what the tensor
/// cores could do at the clock behind it, and where the peaks were measured % of GEMM and % of roofline.
/// FLOPs are those of Problem::forward_flops(), for a backward pass 2.5 times as many. The roofline allows
/// max(FLOPs / peak, bytes / bandwidth) seconds; bytes are what no kernel can do without: Q, K and V read
/// once, O and L written once; for a backward pass Q, K, V, O, dO and L read once, dQ, dK and dV written
/// once.
void report_speed(benchmark::State& state, const Problem& p, Pass pass, const Timing& ms,
                  const Peaks& peaks);

}  // namespace flashladder
