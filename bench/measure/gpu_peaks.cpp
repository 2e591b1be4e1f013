// The two ends of the roofline, measured by the same rules as the stages: a large matrix product of cuBLAS,
// and a copy from device memory to device memory.
#include "bench/measure/gpu_peaks.hpp"

#include <algorithm>
#include <string>

#ifdef FLASHLADDER_HAS_CUBLAS
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cmath>
#include <vector>

#include "common/attention/backend.hpp"
#include "common/check/inputs.hpp"
#include "common/error.hpp"
#endif

namespace flashladder {

double Peaks::gemm(Dtype dtype) const {
  return dtype == Dtype::bf16 ? gemm_bf16 : dtype == Dtype::fp32 ? gemm_fp32 : 0;
}

void report_speed(benchmark::State& state, const Problem& p, Pass pass, const Timing& ms,
                  const Peaks& peaks) {
  const bool backward = pass == Pass::backward;
  const auto rows = static_cast<double>(p.batch * p.q_heads * p.Nq);
  const auto keys = static_cast<double>(p.batch * p.kv_heads * p.Nk);
  const double row_bytes = static_cast<double>(p.d) * static_cast<double>(size_of(p.dtype));
  const double bytes = (backward ? 4 : 2) * (rows + keys) * row_bytes + 4 * rows;
  const double flops = (backward ? 2.5 : 1) * p.forward_flops(), peak = peaks.gemm(p.dtype);
  state.counters["TFLOP/s"] = ms.per_second(flops) / 1e12;
  if (const double most = tensor_flops_per_clock() * ms.sm_ghz * 1e9; most > 0 && size_of(p.dtype) == 2)
    state.counters["% of tensor cores"] = 100 * ms.per_second(flops) / most;
  if (peak > 0) state.counters["% of GEMM"] = 100 * ms.per_second(flops) / peak;
  if (peak > 0 && peaks.copy > 0)
    state.counters["% of roofline"] = ms.per_second(100 * std::max(flops / peak, bytes / peaks.copy));
}

#ifdef FLASHLADDER_HAS_CUBLAS
namespace {

constexpr int n = 8192;                     // the matrices are n x n
constexpr std::int64_t block = 64 * n;      // as many random numbers; the matrices repeat them
constexpr std::int64_t copied = 1LL << 30;  // bytes

void require(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(std::string(what) + ": " + cublasGetStatusString(status));
}
void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// Two blocks of random numbers. Zeros would do less work than numbers do: the GPU would clock higher.
Inputs random_blocks(Dtype dtype) {
  Problem p;
  p.Nq = p.Nk = block / p.d;
  p.dtype = dtype;
  return random_inputs(p, 1);
}

/// Fills `memory`, a multiple of a block, with copies of one.
void fill(BackendMemory& memory, const std::vector<std::byte>& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  for (std::int64_t at = 0; at < memory.bytes(); at += size) memory.upload(at, bytes.data(), size);
}

/// C = A B by cuBLAS, all of one dtype and stored column by column.
class Gemm {
 public:
  explicit Gemm(Dtype of) : dtype_(of) {
    fill(A_, as_bytes(dtype_, blocks_.Q));
    fill(B_, as_bytes(dtype_, blocks_.K));
    fill(C_, std::vector<std::byte>(1 << 20, std::byte{0xff}));  // NaN
    require(cublasCreate(&cublas_), "cuBLAS");
  }
  ~Gemm() { (void)cublasDestroy(cublas_); }
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void run() {
    const float one = 1, zero = 0;
    const cudaDataType type = dtype_ == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    // CUBLAS_COMPUTE_32F adds up in fp32, and never takes TF32 for fp32: that is another word.
    require(cublasGemmEx(cublas_, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, A_.data(), type, n, B_.data(),
                         type, n, &zero, C_.data(), type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            "matrix product of cuBLAS");
  }

  /// Throws Error unless the last numbers of the last column of C are right. Sums of 8192 such products in
  /// fp32 are off by at most 0.0005 or so, those in TF32 by 0.02 in the median: 0.01 tells them apart.
  void check() const {
    constexpr int rows = 16;
    const std::int64_t size = size_of(dtype_);
    std::vector<std::byte> C(static_cast<std::size_t>(rows * size));
    C_.download(C_.bytes() - rows * size, C.data(), rows * size);
    for (int r = 0; r < rows; ++r) {
      const std::int64_t i = n - rows + r, j = n - 1;
      double right = 0;
      for (std::int64_t k = 0; k < n; ++k)
        right += static_cast<double>(blocks_.Q[(i + k * n) % block]) * blocks_.K[(k + j * n) % block];
      const double error = std::abs(load_as(dtype_, &C[static_cast<std::size_t>(r * size)]) - right);
      const double allowed = 0.01 + unit_roundoff(dtype_) * std::abs(right);
      if (!(error <= allowed))  // NaN is not <= anything
        throw Error("cuBLAS's product is wrong: off by " + std::to_string(error) + ", allowed are " +
                    std::to_string(allowed));
    }
  }

 private:
  Dtype dtype_;
  Inputs blocks_ = random_blocks(dtype_);
  std::int64_t bytes_ = static_cast<std::int64_t>(n) * n * size_of(dtype_);
  BackendMemory A_{Backend::cuda, bytes_}, B_{Backend::cuda, bytes_}, C_{Backend::cuda, bytes_};
  cublasHandle_t cublas_ = nullptr;
};

Timing measure_gemm(benchmark::State& state, Dtype dtype, double& peak) {
  Gemm gemm(dtype);
  gemm.run();
  synchronise(Backend::cuda);
  gemm.check();
  const Timing ms = time_on_gpu([&] { gemm.run(); });
  peak = ms.per_second(2.0 * n * n * n);
  state.counters["TFLOP/s"] = peak / 1e12;
  return ms;
}

Timing measure_copy(benchmark::State& state, double& bandwidth) {
  BackendMemory from(Backend::cuda, copied), to(Backend::cuda, copied);
  const std::vector<std::byte> bytes = as_bytes(Dtype::fp32, random_blocks(Dtype::fp32).Q);
  fill(from, bytes);
  const auto run = [&] {
    require(cudaMemcpyAsync(to.data(), from.data(), copied, cudaMemcpyDeviceToDevice), "copy on the GPU");
  };
  run();
  synchronise(Backend::cuda);
  std::vector<std::byte> arrived(bytes.size());
  const auto size = static_cast<std::int64_t>(bytes.size());
  to.download(copied - size, arrived.data(), size);
  if (arrived != bytes)
    throw Error("a copy on the GPU is wrong: its last bytes are not those that it copied");
  const Timing ms = time_on_gpu(run);
  bandwidth = ms.per_second(2.0 * copied);  // each byte is read and written
  state.counters["TB/s"] = bandwidth / 1e12;
  return ms;
}

}  // namespace

void register_gpu_peaks(Peaks& peaks, bool& any_failed) {
  add_gpu_benchmark("peak/gemm_bf16", any_failed, [&peaks](benchmark::State& state) {
    return measure_gemm(state, Dtype::bf16, peaks.gemm_bf16);
  });
  add_gpu_benchmark("peak/gemm_fp32", any_failed, [&peaks](benchmark::State& state) {
    return measure_gemm(state, Dtype::fp32, peaks.gemm_fp32);
  });
  add_gpu_benchmark("peak/copy", any_failed,
                    [&peaks](benchmark::State& state) { return measure_copy(state, peaks.copy); });
}
#else
void register_gpu_peaks(Peaks&, bool&) {}
#endif

}  // namespace flashladder
