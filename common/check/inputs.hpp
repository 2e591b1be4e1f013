#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/attention/stage.hpp"

namespace flashladder {

/// A way of making Q, K and V that shows some mistakes and hides others; together they show them all
/// (tests/wrong_outputs_test.cpp and tests/wrong_gradients_test.cpp prove it).
struct Family {
  std::string_view name;                                  ///< For tables and messages.
  std::string_view purpose;                               ///< What it shows, one line.
  void (*fill)(Inputs& inputs, std::mt19937_64& random);  ///< Sets every element of Q, K and V.
};

/// The families that every stage is checked on.
std::span<const Family> input_families();

/// Inputs of `family` for `problem`, the same for the same seed, rounded to the problem's dtype.
/// Every batch entry and head gets data of its own.
Inputs make_inputs(const Family& family, const Problem& problem, std::uint64_t seed);

/// Makes the slopes, the bias and the sinks that a problem has, from its Q and K: the slopes of ALiBi's
/// paper, a bias that hides some keys, and sinks that count about as much as what some row of their head
/// sees.
void fill_variant(Inputs& inputs, std::uint64_t seed);

/// A block map for `p`, for each of `batch` batch entries and `heads` query heads: a block is live with
/// chance `share`, and that of the last row and key always. The same for the same seed.
BlockMap random_block_map(const Problem& p, std::int64_t batch, std::int64_t heads, double share,
                          std::uint64_t seed);

/// What `stage` takes inputs of `dtype` as: its first dtype where it takes neither that nor fp32.
Dtype dtype_for(const Stage& stage, Dtype dtype);

/// `inputs` as `stage` takes them: rounded to dtype_for it.
Inputs for_stage(const Stage& stage, Inputs inputs);

/// Normal random inputs, what `--random` gives: the first family.
Inputs random_inputs(const Problem& problem, std::uint64_t seed);

/// Inputs whose scores never ask for another maximum once a row has its first one: they are a little below
/// 0 for keys 0 ... first - 1, and a little above 0 for all others, so that those are not negative, and the
/// maximum grows by less than a factor of 8 after the exponential. For a scale that is not negative.
Inputs steady_inputs(const Problem& problem, std::int64_t first);

/// A normal random output gradient dO [batch, q_heads, Nq, d].
std::vector<float> random_output_gradient(const Problem& problem, std::uint64_t seed);

}  // namespace flashladder
