// Runs every stage that the installed package has on random input, and checks it.
#include <cstdio>

#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

int main() {
  flashladder::Problem problem;
  problem.Nq = problem.Nk = 50;
  const flashladder::Inputs random = flashladder::random_inputs(problem, 1);
  if (flashladder::stages().empty()) return 1;
  for (const flashladder::Stage* stage : flashladder::stages()) {
    if (stage->forward == nullptr) continue;
    const flashladder::Inputs inputs = flashladder::for_stage(*stage, random);
    const flashladder::Expected expected =
        flashladder::expect_forward(inputs, flashladder::computing_dtype(*stage, inputs.problem.dtype));
    const flashladder::Verdict verdict =
        flashladder::run_and_check(*stage, inputs, flashladder::Layout::contiguous, expected);
    std::printf("%s: %s\n", flashladder::label(*stage).c_str(),
                verdict.passed ? "passed" : verdict.why.c_str());
    if (!verdict.passed) return 1;
  }
}
