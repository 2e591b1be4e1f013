// The stages behind a plain C interface, for programs that are not C++: compare_cpu.py loads it with
// ctypes.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <experimental/simd>
#include <string_view>

#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"

namespace {

using namespace flashladder;

void put(std::string_view text, char* message, std::size_t size) {
  if (size == 0) return;
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(message, text.data(), length);
  message[length] = '\0';
}

Tensor contiguous(const float* data, std::int64_t heads, std::int64_t rows, std::int64_t d) {
  return {
      .data = const_cast<float*>(data), .dtype = Dtype::fp32, .stride = {heads * rows * d, rows * d, d}};
}

using Vec = std::experimental::native_simd<float>;
constexpr int lanes = Vec::size();
constexpr int sums = 12;  // more than the latency of a multiply-add times how many start per cycle

/// Multiply-adds on sums that never leave the registers, and nothing else. Returns something made of them
/// all.
float multiply_add(std::int64_t steps) {
  Vec sum[sums];
  for (int i = 0; i < sums; ++i) sum[i] = static_cast<float>(i);
  const Vec factor = 0.999f, term = 0.5f;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < sums; ++i) sum[i] = sum[i] * factor + term;
  }
  for (int i = 1; i < sums; ++i) sum[0] += sum[i];
  return std::experimental::reduce(sum[0]);
}

}  // namespace

// The rest of this library is hidden (CMakeLists.txt): a process that has loaded PyTorch has a C++ runtime
// of its own.
#pragma GCC visibility push(default)
extern "C" {

/// Computes O and L of one problem with stage `stage`. q and o are [batch, q_heads, Nq, d], k and v
/// [batch, kv_heads, Nk, d], lse [batch, q_heads, Nq], all contiguous; scale 0 stands for 1/sqrt(d).
/// Returns 0, or 1 with the reason in `message` (at most message_size bytes with the closing 0).
int flashladder_forward(int stage, std::int64_t batch, std::int64_t q_heads, std::int64_t kv_heads,
                        std::int64_t Nq, std::int64_t Nk, std::int64_t d, int causal, float scale,
                        const float* q, const float* k, const float* v, float* o, float* lse, char* message,
                        std::size_t message_size) {
  try {
    const Problem problem{.batch = batch,
                          .q_heads = q_heads,
                          .kv_heads = kv_heads,
                          .Nq = Nq,
                          .Nk = Nk,
                          .d = d,
                          .causal = causal != 0,
                          .scale = scale};
    problem.validate();
    Workspace workspace;
    find_stage(stage).forward({problem, contiguous(q, q_heads, Nq, d), contiguous(k, kv_heads, Nk, d),
                               contiguous(v, kv_heads, Nk, d), contiguous(o, q_heads, Nq, d), lse,
                               workspace});
    return 0;
  } catch (const std::exception& error) {
    put(error.what(), message, message_size);
    return 1;
  }
}

/// The name of stage `stage`, such as "tiled_cpu". Returns as flashladder_forward does, the name in `name`.
int flashladder_name(int stage, char* name, std::size_t size) {
  try {
    put(find_stage(stage).name, name, size);
    return 0;
  } catch (const std::exception& error) {
    put(error.what(), name, size);
    return 1;
  }
}

/// The compiler that built this library.
const char* flashladder_compiler() {
#ifdef __clang__
  return __VERSION__;
#else
  return "GCC " __VERSION__;
#endif
}

/// Lanes of the widest vectors this library was compiled for.
int flashladder_lanes() {
  return lanes;
}

/// GFLOP/s of one thread that does multiply-adds in registers and nothing else: what no stage can exceed,
/// if the library was compiled for the same instructions as the stages.
double flashladder_peak() {
  constexpr std::int64_t steps = 2'000'000;
  double best = 0;
  for (int repetition = 0; repetition < 20; ++repetition) {
    const auto start = std::chrono::steady_clock::now();
    const volatile float result = multiply_add(steps);  // volatile, so that the work cannot be left out
    static_cast<void>(result);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * sums * static_cast<double>(steps * lanes) / time.count() * 1e-9);
  }
  return best;
}
}  // extern "C"
#pragma GCC visibility pop
