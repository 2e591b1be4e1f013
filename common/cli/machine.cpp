#include "common/cli/machine.hpp"

#include <fstream>
#include <string>
#include <thread>

#include "common/cli/version.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace flashladder {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

int threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

nlohmann::ordered_json machine_json() {
  return {{"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads", threads()},
          {"compiler", FLASHLADDER_COMPILER},
          {"build", FLASHLADDER_BUILD_TYPE},
          {"commit", commit()}};
}

}  // namespace flashladder
