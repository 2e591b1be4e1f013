// Exits with 0 where the GPU stages can run on a GPU, else says why not and exits with 77, which ctest
// takes for "skipped".
#include <cstdio>

#include "common/attention/backend.hpp"

int main() {
  const std::string why = flashladder::unavailable(flashladder::Backend::cuda);
  if (why.empty()) return 0;
  std::printf("skipped: %s\n", why.c_str());
  return 77;
}
