#include "common/check/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace flashladder {
namespace {

using Random = std::mt19937_64;

/// Uniform in (0, 1]. std::uniform_real_distribution differs between standard libraries; this does not.
double uniform(Random& random) {
  return (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
}

std::int64_t below(std::int64_t n, Random& random) {
  return static_cast<std::int64_t>(random() % n);
}

float normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform(random)));
}

void fill_normal(std::vector<float>& values, Random& random, float mean = 0) {
  for (float& x : values) x = mean + normal(random);
}

void zero_mean(Inputs& in, Random& random) {
  for (auto* values : {&in.Q, &in.K, &in.V}) fill_normal(*values, random);
}

void offset(Inputs& in, Random& random) {
  fill_normal(in.Q, random, 0.25f);
  fill_normal(in.K, random, 0.25f);
  fill_normal(in.V, random, 1);
}

void small_integers(Inputs& in, Random& random) {
  for (auto* values : {&in.Q, &in.K, &in.V}) {
    for (float& x : *values) x = below(3, random) == 0 ? static_cast<float>(below(5, random) - 2) : 0;
  }
}

void large_scores(Inputs& in, Random& random) {
  zero_mean(in, random);
  const std::int64_t d = in.problem.d;
  for (std::size_t row = 0; row < in.Q.size() / d; ++row) {
    const float factor = row % 3 == 0 ? 40 : row % 3 == 1 ? 5 : 1;
    for (std::int64_t c = 0; c < d; ++c) in.Q[row * d + c] *= factor;
  }
}

void very_negative(Inputs& in, Random& random) {
  // Every key points one way and every query the other; scores of -400 differ by 2 or so.
  const Problem& p = in.problem;
  const double spread = 0.02 * std::sqrt(static_cast<double>(p.d));
  for (float& x : in.K) x = static_cast<float>(1 + spread * (uniform(random) - 0.5));
  fill_normal(in.Q, random);
  for (std::size_t row = 0; row < in.Q.size() / p.d; ++row) {
    const float score = row % 3 == 0 ? -400 : row % 3 == 1 ? -150 : -30;
    for (std::int64_t c = 0; c < p.d; ++c)
      in.Q[row * p.d + c] += score / (p.softmax_scale() * static_cast<float>(p.d));
  }
  fill_normal(in.V, random);
}

/// The key that row i of the family 'needle' looks for: all the places where kernels go wrong, and random
/// ones.
std::int64_t needle_key(const Problem& p, std::int64_t i, Random& random) {
  const auto [first, end] = p.keys(i);
  const std::int64_t keys[] = {
      end - 1,  // the last key it sees
      first,    // the first
      end,      // the first key after them, which it must not see
      end - 2,
      end - 1 - i % 8,  // the last tile's tail
      end - 1 - i % 128,
      below(p.Nk, random) / 16 * 16,  // the edges of tiles
      below(p.Nk, random) / 16 * 16 + 15,
      below(p.Nk, random),
  };
  const std::int64_t key = keys[below(std::ssize(keys), random)];
  return key >= 0 && key < p.Nk ? key : below(p.Nk, random);
}

void needle(Inputs& in, Random& random) {
  const Problem& p = in.problem;
  const std::int64_t d = p.d;
  // Keys of equal length point in random directions; a query is a multiple of the key it looks for.
  fill_normal(in.K, random);
  for (std::size_t row = 0; row < in.K.size() / d; ++row) {
    double square = 0;
    for (std::int64_t c = 0; c < d; ++c) square += in.K[row * d + c] * in.K[row * d + c];
    const float to_unit = static_cast<float>(1 / std::sqrt(square));
    for (std::int64_t c = 0; c < d; ++c) in.K[row * d + c] *= to_unit;
  }
  // Of the key that is looked for. At 24 it is all of P, and dS is nearly 0; in each fourth row about half.
  // At 300 a maximum that misses it makes the exponentials overflow.
  const float half = 1 + std::log(static_cast<float>(p.Nk));
  const auto score = [&](std::int64_t i) { return i % 4 == 0 ? half : i % 3 == 0 ? 300 : 24; };
  for (std::int64_t bh = 0; bh < p.batch * p.q_heads; ++bh) {
    const std::int64_t kv = bh / p.q_heads * p.kv_heads + p.kv_head(bh % p.q_heads);
    for (std::int64_t i = 0; i < p.Nq; ++i) {
      const float* key = &in.K[(kv * p.Nk + needle_key(p, i, random)) * d];
      for (std::int64_t c = 0; c < d; ++c)
        in.Q[(bh * p.Nq + i) * d + c] = score(i) / p.softmax_scale() * key[c];
    }
  }
  // V spells the key's index in signs, bit by bit, and the head's in the size.
  for (std::int64_t g = 0; g < p.batch * p.kv_heads; ++g) {
    for (std::int64_t j = 0; j < p.Nk; ++j) {
      for (std::int64_t c = 0; c < d; ++c) {
        const float size = 1 + 0.25f * static_cast<float>(g % 16);
        in.V[(g * p.Nk + j) * d + c] = (j + 1) >> (c % 20) & 1 ? size : -size;
      }
    }
  }
}

/// The slopes of ALiBi as its paper has them: of H heads 2^(-8 / H), 2^(-16 / H) ... 2^-8. (Press, Smith
/// and Lewis, Train short, test long, 2022, section 3.)
std::vector<float> make_slopes(const Problem& p) {
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < p.q_heads; ++h)
    slopes.push_back(std::exp2(-8 * static_cast<float>(h + 1) / static_cast<float>(p.q_heads)));
  return slopes;
}

/// Small numbers, and one of 32 hides a key.
std::vector<float> make_bias(const Problem& p, Random& random) {
  std::vector<float> bias(p.bias_batch * p.bias_heads * p.bias_rows * p.Nk);
  for (float& x : bias)
    x = below(32, random) == 0 ? -std::numeric_limits<float>::infinity() : normal(random);
  return bias;
}

/// Of each head about the logarithm of the sum of exponentials of some row of it.
std::vector<float> make_sinks(const Inputs& in, Random& random) {
  const Problem& p = in.problem;
  std::vector<float> sinks;
  for (std::int64_t h = 0; h < p.q_heads; ++h) {
    const std::int64_t i = below(p.Nq, random), j = below(p.Nk, random);
    const float *q = &in.Q[(h * p.Nq + i) * p.d], *k = &in.K[(p.kv_head(h) * p.Nk + j) * p.d];
    float score = 0;
    for (std::int64_t c = 0; c < p.d; ++c) score += q[c] * k[c];
    const float keys = static_cast<float>(std::max<std::int64_t>(p.keys(i).size(), 1));
    sinks.push_back(p.score(score * p.softmax_scale()) - in.alibi(h, i, j) + std::log(keys) +
                    normal(random));
  }
  return sinks;
}

constexpr Family families[] = {
    {"zero_mean", "outputs that vanish as 1/sqrt(N): an error that does not vanish stands out", zero_mean},
    {"offset", "a mean that keeps outputs of order 1 at any N: scaling and normalisation", offset},
    {"small_integers", "scores that are exact in any order: what remains is the softmax", small_integers},
    {"large_scores", "rows with scores in the hundreds: overflow, missing rescaling", large_scores},
    {"very_negative", "rows whose scores are all far below 0: a maximum that starts too high",
     very_negative},
    {"needle", "each row looks for one key, V spells the key's index: dropped, shifted, masked, swapped",
     needle},
};

}  // namespace

std::span<const Family> input_families() {
  return families;
}

Inputs make_inputs(const Family& family, const Problem& problem, std::uint64_t seed) {
  problem.validate();
  Inputs inputs{problem, std::vector<float>(problem.batch * problem.q_heads * problem.Nq * problem.d),
                std::vector<float>(problem.batch * problem.kv_heads * problem.Nk * problem.d),
                std::vector<float>(problem.batch * problem.kv_heads * problem.Nk * problem.d)};
  Random random(seed);
  family.fill(inputs, random);
  fill_variant(inputs, seed);
  for (auto* values : {&inputs.Q, &inputs.K, &inputs.V}) {
    for (float& x : *values) x = round_to(problem.dtype, x);
  }
  return inputs;
}

void fill_variant(Inputs& inputs, std::uint64_t seed) {
  Random random(seed ^ 0xd1b54a32d192ed03u);  // not the inputs' own numbers again
  if (inputs.problem.alibi) inputs.slopes = make_slopes(inputs.problem);
  if (inputs.problem.has_bias()) inputs.bias = make_bias(inputs.problem, random);
  if (inputs.problem.sinks) inputs.sinks = make_sinks(inputs, random);
}

BlockMap random_block_map(const Problem& p, std::int64_t batch, std::int64_t heads, double share,
                          std::uint64_t seed) {
  BlockMap map{batch, heads, (p.Nq + BlockMap::size - 1) / BlockMap::size,
               (p.Nk + BlockMap::size - 1) / BlockMap::size};
  Random random(seed);
  // Of the generator itself: the library's distributions are not the same everywhere.
  const auto below_share = [&] { return share >= 1 || static_cast<double>(random()) < share * 0x1p64; };
  for (std::int64_t block = 1; block <= map.blocks(); ++block) {
    const bool is_last = block % (map.rows * map.keys) == 0;  // of its map
    map.live.push_back(below_share() || is_last ? 1 : 0);
  }
  return map;
}

Dtype dtype_for(const Stage& stage, Dtype dtype) {
  return stage.supports.dtype(computing_dtype(stage, dtype)) ? dtype : stage.supports.dtypes.front();
}

Inputs for_stage(const Stage& stage, Inputs inputs) {
  const Dtype dtype = dtype_for(stage, inputs.problem.dtype);
  if (dtype == inputs.problem.dtype) return inputs;
  inputs.problem.dtype = dtype;
  for (auto* values : {&inputs.Q, &inputs.K, &inputs.V}) {
    for (float& x : *values) x = round_to(dtype, x);
  }
  return inputs;
}

Inputs random_inputs(const Problem& problem, std::uint64_t seed) {
  return make_inputs(families[0], problem, seed);
}

Inputs steady_inputs(const Problem& problem, std::int64_t first) {
  Inputs inputs = random_inputs(problem, 1);
  for (float& q : inputs.Q) q = round_to(problem.dtype, 0.5f + std::min(std::abs(q), 2.f) / 4);
  const float small = 1 / std::sqrt(static_cast<float>(problem.d));  // scores of 0.5 to 1 after scaling
  for (std::size_t e = 0; e < inputs.K.size(); ++e) {
    const auto key = static_cast<std::int64_t>(e) / problem.d % problem.Nk;
    inputs.K[e] = round_to(problem.dtype, key < first ? -small : small);
  }
  return inputs;
}

std::vector<float> random_output_gradient(const Problem& problem, std::uint64_t seed) {
  std::vector<float> dO(problem.batch * problem.q_heads * problem.Nq * problem.d);
  Random random(seed ^ 0x9e3779b97f4a7c15u);  // not the inputs' own numbers again
  fill_normal(dO, random);
  for (float& x : dO) x = round_to(problem.dtype, x);
  return dO;
}

}  // namespace flashladder
