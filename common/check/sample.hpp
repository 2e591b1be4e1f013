#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/check/check.hpp"

namespace flashladder {

/// Consecutive rows of one head with the keys they see: a problem of its own, whose O and L are those rows'
/// of the large problem.
struct Chunk {
  std::int64_t head;   ///< Of all query heads of all batch entries.
  std::int64_t first;  ///< The first of its rows.
  Inputs inputs;       ///< Those rows of Q, and the K and V they see.
};

/// Rows that stand for a problem whose oracle would take too long: in the first, the last and some more
/// heads the first rows that see a key, the last rows, and some between.
std::vector<Chunk> sample_of(const Inputs& inputs);

/// What is right for the rows of a sample, and how far stages may be from each other on all rows.
struct ExpectedSample {
  std::vector<Expected> chunks;  ///< Of each; the bounds are those of all rows of the sample together.
  Expected all;                  ///< Bounds alone, made of the chunks': for check_against.
};

/// @param problem  that the sample is of
/// @param expected  of each chunk
ExpectedSample expect_sample(const Problem& problem, const std::vector<Chunk>& sample,
                             std::vector<Expected> expected);

/// O and L of a problem, by its sample: the rows of the sample against the oracle; every other element must
/// be a number, and that of a row that sees no key 0, with L = -inf.
Verdict check_sample(const Result<float>& result, const Problem& problem, const std::vector<Chunk>& sample,
                     const ExpectedSample& expected);

/// As run_and_check, by a sample.
Verdict run_and_check_sample(const Stage& stage, const Inputs& inputs, const std::vector<Chunk>& sample,
                             const ExpectedSample& expected, Result<float>* result);

/// Seconds that the oracle, with the plain computations beside it, will take on this machine: from a run of
/// it on a small problem.
double oracle_seconds(const Problem& problem, Pass pass);
/// Seconds that a forward pass of a stage will take, likewise; 0 where that cannot be told.
double stage_seconds(const Stage& stage, const Problem& problem);

}  // namespace flashladder
