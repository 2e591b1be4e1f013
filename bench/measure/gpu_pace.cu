// What the pace of measurements takes of a GPU: a rest, and what its tensor cores could do in a clock.
#include "bench/measure/gpu_pace.hpp"

#include <string>
#include <utility>

#include "common/attention/backend.hpp"
#include "common/error.hpp"

namespace flashladder {
namespace {

__global__ void wait_for(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(status));
}

}  // namespace

void rest_on_gpu() {
  wait_for<<<1, 1>>>(20'000'000);  // 10 ms at 2 GHz
  require(cudaGetLastError(), "a rest of the GPU");
}

double tensor_flops_per_clock() {
  int major = 0, minor = 0, multiprocessors = 0;
  for (const auto& [attribute, value] : {std::pair{cudaDevAttrComputeCapabilityMajor, &major},
                                         {cudaDevAttrComputeCapabilityMinor, &minor},
                                         {cudaDevAttrMultiProcessorCount, &multiprocessors}}) {
    require(cudaDeviceGetAttribute(value, attribute, 0), "a GPU's attribute");
  }
  // NVIDIA's white papers of A100 and H100
  const int of_one = major == 9 ? 4096 : 10 * major + minor == 80 ? 2048 : 0;
  return static_cast<double>(of_one) * multiprocessors;
}

}  // namespace flashladder
