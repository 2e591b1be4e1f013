// Exits with 0 where stages can run on a GPU, or the one whose number is given can, else says why not and
// exits with 77, which ctest takes for "skipped".
#include <cstdio>
#include <cstdlib>

#include "common/attention/stage.hpp"

int main(int argc, char** argv) {
  using namespace flashladder;
  const std::string why =
      argc > 1 ? unavailable(find_stage(std::atoi(argv[1])), Backend::cuda) : unavailable(Backend::cuda);
  if (why.empty()) return 0;
  std::printf("skipped: %s\n", why.c_str());
  return 77;
}
