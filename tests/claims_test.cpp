// The claims of the CPU stages: extra memory from the workspace, which is their only source of memory, and
// passes over the scores from a counting element type. The closed forms are those of stages/0*/claim.cpp;
// what else is claimed there, the labs count.
#include <cstdlib>

#include "catch.hpp"
#include "common/attention/counted.hpp"
#include "common/check/allocations.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"
#include "common/claims/cpu_claim.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

using namespace flashladder;

/// Runs `body` with `count` OpenMP threads.
template <class Body>
auto with_threads(int count, Body body) {
#ifdef _OPENMP
  const int usual = omp_get_max_threads();
  omp_set_num_threads(count);
  const auto result = body();
  omp_set_num_threads(usual);
  return result;
#else
  return count == 1 ? body() : count * body();  // one thread is all there is
#endif
}

Problem square(std::int64_t N, std::int64_t d, bool causal = false) {
  Problem p;
  p.batch = 2;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.Nq = p.Nk = N;
  p.d = d;
  p.causal = causal;
  return p;
}

/// Runs `body` and returns how many calls that get memory it made, outside the workspace; 0 where they are
/// not counted.
template <class Body>
long allocations_by(Body body) {
#ifdef FLASHLADDER_COUNTS_ALLOCATIONS
  const long before = allocations();
  body();
  return allocations() - before;
#else
  body();
  return 0;
#endif
}

std::int64_t extra_bytes(const Stage& stage, const Problem& problem) {
  const Inputs inputs = random_inputs(problem, 1);
  ForwardRun run(stage, inputs);
  Workspace workspace;
  // In every run, the first above all: a buffer kept for later runs is memory as well.
  const long elsewhere = allocations_by([&] { run.run(workspace); });
  CHECK(elsewhere == 0);
  return workspace.peak_bytes();
}

/// What the stage's claim says of a counter.
std::int64_t claimed(int number, std::string_view counter, const Problem& problem, int threads = 1) {
  const CpuClaim& claim = *cpu_claim_of(find_stage(number));
  const CpuForm* form = claim.forward.find(counter);
  REQUIRE(form != nullptr);
  return form->count.value(claim.symbols(problem, threads));
}

TEST_CASE("extra memory of 00 is that of S and P, 2 Nq Nk elements", "[claim][00_naive_cpu]") {
  for (Problem p : {square(16, 8), square(300, 64, true)}) {
    for (std::int64_t Nk : {p.Nk, std::int64_t{7}}) {
      p.Nk = Nk;
      CHECK(extra_bytes(find_stage(0), p) == 2 * p.Nq * p.Nk * 4);
      CHECK(claimed(0, "extra_memory", p) == 2 * p.Nq * p.Nk * 4);
    }
  }
}

TEST_CASE("extra memory of 01 is one row of d elements, whatever N", "[claim][01_online_softmax_cpu]") {
  for (const Problem& p : {square(16, 8), square(300, 64), square(1000, 64, true), square(20, 256)}) {
    CHECK(extra_bytes(find_stage(1), p) == p.d * 4);
    CHECK(claimed(1, "extra_memory", p) == p.d * 4);
  }
}

TEST_CASE("extra memory of 02 is threads * tile, whatever N", "[claim][02_tiled_cpu]") {
  for (std::int64_t d : {32, 128}) {
    // The stage's tile: Q transposed, a tile of scores, m, l and a factor for each row.
    const std::int64_t Br = 64, Bc = 60;
    const std::int64_t tile = 4 * Br * (d + Bc + 3);
    const auto check = [&](int threads, std::int64_t N, bool causal) {
      Problem problem = square(N, d, causal);
      problem.batch = problem.q_heads = problem.kv_heads = 1;  // the sanitizers make long sequences slow
      const std::int64_t bytes = with_threads(threads, [&] { return extra_bytes(find_stage(2), problem); });
      CHECK(bytes == threads * tile);
      CHECK(claimed(2, "extra_memory", problem, threads) == threads * tile);
    };
    check(1, 256, false);
    for (std::int64_t N : {512, 1024, 4096}) check(1, N, true);
    for (int threads : {2, 3, 8}) check(threads, 1024, false);
  }
}

/// Reads of each score, counted by the scores' own type, over all visible pairs of the problem.
double reads_per_score(const Stage& stage, const Problem& problem) {
  REQUIRE(stage.forward_counting != nullptr);
  const Inputs inputs = random_inputs(problem, 2);
  ForwardRun run(stage, inputs);
  Workspace workspace;
  Counted::made = Counted::reads = 0;
  run.run_counting(workspace);
  const std::int64_t scores = problem.batch * problem.q_heads * problem.visible_pairs();
  CHECK(Counted::made == scores);  // each score is computed once
  const std::int64_t reads = Counted::reads;
  CHECK(reads % scores == 0);
  // It is the very same code: the counting run's result is the stage's own.
  const Result<float> counted = run.result();
  run.run(workspace);
  CHECK(counted.O == run.result().O);
  CHECK(counted.L == run.result().L);
  return static_cast<double>(reads) / static_cast<double>(scores);
}

TEST_CASE("reads of each score: 3 in 00, 1 in 01", "[claim][00_naive_cpu][01_online_softmax_cpu]") {
  for (const Problem& p : {square(33, 16), square(33, 16, true), square(128, 64)}) {
    for (const auto& [number, reads] : {std::pair{0, 3}, {1, 1}}) {
      CHECK(reads_per_score(find_stage(number), p) == reads);
      CHECK(claimed(number, "score_reads", p) == reads * claimed(number, "scores_made", p));
    }
  }
}

TEST_CASE("the backward pass of 00 stores P and dS, 2 Nq Nk elements", "[claim][00_naive_cpu]") {
  for (const Problem& p : {square(16, 8), square(60, 64, true)}) {
    const Inputs inputs = random_inputs(p, 1);
    BackwardRun run(find_stage(0), inputs, plain_forward(inputs, p.dtype), random_output_gradient(p, 1));
    Workspace workspace;
    const long elsewhere = allocations_by([&] { run.run(workspace); });
    CHECK(elsewhere == 0);
    CHECK(workspace.peak_bytes() == 2 * p.Nq * p.Nk * 4);
    CHECK(workspace.bytes_in_use() == 0);
  }
}

TEST_CASE("the workspace is the only source of a CPU stage's memory", "[claim]") {
#ifdef FLASHLADDER_COUNTS_ALLOCATIONS
  void* volatile kept = nullptr;  // volatile, so that the compiler does not leave the allocation out
  CHECK(allocations_by([&] { kept = std::malloc(8); }) == 1);  // the counter counts
  std::free(kept);
  CHECK(allocations_by([] { ::operator delete(::operator new(8)); }) == 1);
#endif
  const Problem problem = square(100, 40, true);
  const Inputs inputs = random_inputs(problem, 3);
  for (const Stage* stage : stages()) {
    if (stage->number >= 10) continue;
    INFO(label(*stage));
    CHECK(extra_bytes(*stage, problem) > 0);
    if (stage->backward == nullptr) continue;
    BackwardRun backward(*stage, inputs, plain_forward(inputs, problem.dtype),
                         random_output_gradient(problem, 3));
    Workspace workspace;
    const long elsewhere = allocations_by([&] { backward.run(workspace); });
    CHECK(elsewhere == 0);
  }
}

}  // namespace
