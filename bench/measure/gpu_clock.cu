// The clock of the multiprocessors, and what their tensor cores could do at it.
#include <string>
#include <utility>

#include "bench/measure/on_gpu.hpp"
#include "common/attention/backend.hpp"
#include "common/error.hpp"

namespace flashladder {
namespace {

__global__ void wait_for(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

double milliseconds(GpuTimer& timer, long long cycles) {
  timer.start();
  wait_for<<<1, 1>>>(cycles);
  return timer.stop();
}

}  // namespace

// How much longer a kernel takes that waits for more of its cycles.
double sm_ghz() {
  constexpr long long few = 20'000, many = 420'000;
  GpuTimer timer;
  const double ms = milliseconds(timer, many) - milliseconds(timer, few);
  return (many - few) / ms / 1e6;
}

double tensor_flops_per_clock() {
  int major = 0, minor = 0, multiprocessors = 0;
  for (const auto& [attribute, value] : {std::pair{cudaDevAttrComputeCapabilityMajor, &major},
                                         {cudaDevAttrComputeCapabilityMinor, &minor},
                                         {cudaDevAttrMultiProcessorCount, &multiprocessors}}) {
    if (const cudaError_t status = cudaDeviceGetAttribute(value, attribute, 0); status != cudaSuccess)
      throw Error(std::string("a GPU's attribute: ") + cudaGetErrorString(status));
  }
  // NVIDIA's white papers of A100 and H100
  const int of_one = major == 9 ? 4096 : 10 * major + minor == 80 ? 2048 : 0;
  return static_cast<double>(of_one) * multiprocessors;
}

}  // namespace flashladder
