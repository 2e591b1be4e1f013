// The oracle is what everything is judged by, so it is judged by something else: hand-computed values,
// properties that follow from the definition, and finite differences for the gradients.
#include <algorithm>
#include <cmath>
#include <utility>

#include "catch.hpp"
#include "common/attention/oracle.hpp"
#include "common/check/inputs.hpp"
#include "common/check/sample.hpp"

namespace {

using namespace flashladder;

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST_CASE("one row by hand", "[oracle]") {
  Problem p;
  p.Nq = 1;
  p.Nk = 2;
  p.d = 1;
  // Scores 0 and log 3: probabilities 1/4 and 3/4.
  const Inputs inputs{p, {1}, {0, std::log(3.0f)}, {8, 16}};
  const Result<double> result = oracle_forward(inputs);
  CHECK(std::abs(result.O[0] - 14) < 1e-6);
  CHECK(std::abs(result.L[0] - std::log(4)) < 1e-6);
}

TEST_CASE("causal is aligned at the bottom right", "[oracle]") {
  Problem p;
  p.d = 1;
  p.causal = true;
  SECTION("more keys than queries: the last query sees all") {
    p.Nq = 2;
    p.Nk = 4;
    const Result<double> result = oracle_forward({p, {0, 0}, {0, 0, 0, 0}, {1, 2, 3, 4}});
    CHECK(result.O == std::vector<double>{2, 2.5});
    CHECK(std::abs(result.L[0] - std::log(3)) < 1e-12);
  }
  SECTION("more queries than keys: the first queries see none") {
    p.Nq = 3;
    p.Nk = 1;
    const Result<double> result = oracle_forward({p, {0, 0, 0}, {0}, {7}});
    CHECK(result.O == std::vector<double>{0, 0, 7});
    CHECK(result.L == std::vector<double>{-infinity, -infinity, 0});
    const Gradients<double> gradients = oracle_backward({p, {0, 0, 0}, {2}, {7}}, {1, 1, 1});
    CHECK(gradients.dQ == std::vector<double>{0, 0, 0});
    CHECK(gradients.dV == std::vector<double>{1});
  }
}

TEST_CASE("query heads read the key/value head of their group", "[oracle]") {
  Problem p;
  p.batch = 2;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.d = 1;
  const Result<double> result = oracle_forward({p, std::vector<float>(8), {0, 0, 0, 0}, {1, 2, 3, 4}});
  CHECK(result.O == std::vector<double>{1, 1, 2, 2, 3, 3, 4, 4});
}

/// The scalar sum(dO * O), whose gradients the backward pass computes.
double loss(const Inputs& inputs, const std::vector<float>& dO) {
  const Result<double> result = oracle_forward(inputs);
  double sum = 0;
  for (std::size_t i = 0; i < dO.size(); ++i) sum += static_cast<double>(dO[i]) * result.O[i];
  return sum;
}

/// Sets the variant of attention.
using Variant = void (*)(Problem&);
constexpr Variant variants[] = {
    [](Problem&) {},
    [](Problem& p) {
      p.window = {1, 2};
    },
    [](Problem& p) { p.softcap = 0.8f; },
    [](Problem& p) { p.prefix = p.causal ? 2 : 0; },
    [](Problem& p) { p.alibi = true; },
    [](Problem& p) { p.sinks = true; },
    [](Problem& p) { p.bias_batch = p.bias_heads = p.bias_rows = 1; },
    [](Problem& p) {
      p.bias_batch = 1;
      p.bias_heads = p.q_heads;
      p.bias_rows = p.Nq;
    },
    [](Problem& p) {
      p.bias_batch = p.batch;
      p.bias_heads = 1;
      p.bias_rows = p.Nq;
    },
    [](Problem& p) {
      p.dropout = {0.4f, 9};
    },
    [](Problem& p) {
      if (p.Nq > BlockMap::size)
        p.block_map = random_block_map(p, 1, p.q_heads, 0.5, 4);
      else  // a head has one block
        p.block_map = {.batch = 1, .heads = 4, .rows = 1, .keys = 1, .live = {1, 0, 1, 1}};
    },
    [](Problem& p) {  // all that go together
      p.window = {3, 0};
      p.softcap = 0.8f;
      p.alibi = p.sinks = true;
      p.bias_batch = p.bias_heads = 1;
      p.bias_rows = p.Nq;
      p.dropout = {0.2f, 1};
    },
};

TEST_CASE("gradients agree with finite differences", "[oracle]") {
  for (const Variant& variant : variants) {
    for (const auto& [causal, scale] : {std::pair(false, 0.f), {true, 0.f}, {false, 0.7f}, {true, 0.7f}}) {
      Problem p;
      p.batch = 2;
      p.q_heads = 4;
      p.kv_heads = 2;
      p.Nq = 7;
      p.Nk = 5;  // the first two rows see no key when causal
      p.d = 3;
      p.causal = causal;
      p.scale = scale;
      const Problem plain = p;
      variant(p);
      INFO(to_string(p));
      Inputs inputs = random_inputs(p, 11);
      const std::vector<float> dO = random_output_gradient(p, 12);
      const Gradients<double> gradients = oracle_backward(inputs, dO);
      // The gradients of plain attention would agree with themselves, too.
      if (to_string(p) != to_string(plain))
        CHECK(oracle_forward(random_inputs(plain, 11)).O != oracle_forward(inputs).O);
      // Steps that fp32 holds exactly; the error of a central difference is about step^2.
      const float step = 0x1p-9f;
      const auto compare = [&](std::vector<float>& values, const std::vector<double>& gradient) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float at = values[i];
          if (std::isinf(at)) {  // a bias that hides a key
            REQUIRE(gradient[i] == 0);
            continue;
          }
          values[i] = at + step;
          const double up = loss(inputs, dO), above = values[i];
          values[i] = at - step;
          const double down = loss(inputs, dO), below = values[i];
          values[i] = at;
          REQUIRE(std::abs((up - down) / (above - below) - gradient[i]) < 2e-5);
        }
      };
      compare(inputs.Q, gradients.dQ);
      compare(inputs.K, gradients.dK);
      compare(inputs.V, gradients.dV);
      CHECK(gradients.dbias.size() == inputs.bias.size());
      compare(inputs.bias, gradients.dbias);
      CHECK(gradients.dsinks.size() == (p.sinks ? 4 : 0));
      compare(inputs.sinks, gradients.dsinks);
    }
  }
}

TEST_CASE("a sample of rows has what these rows have in the whole problem", "[oracle]") {
  for (const Variant& variant : variants) {
    for (bool causal : {false, true}) {
      Problem p{.batch = 2, .q_heads = 4, .kv_heads = 2, .Nq = 150, .Nk = 190, .d = 8, .causal = causal};
      variant(p);
      if (p.prefix > 0) p.prefix = 120;
      if (p.window.left >= 0) p.window = {40, 30};
      INFO(to_string(p));
      const Inputs inputs = random_inputs(p, 3);
      const Result<double> whole = oracle_forward(inputs);
      for (const Chunk& chunk : sample_of(inputs)) {
        const Result<double> part = oracle_forward(chunk.inputs);
        const std::int64_t rows = chunk.inputs.problem.Nq, at = chunk.head * p.Nq + chunk.first;
        REQUIRE(rows >= 32);
        CHECK(std::equal(part.O.begin(), part.O.end(), whole.O.begin() + at * p.d));
        CHECK(std::equal(part.L.begin(), part.L.end(), whole.L.begin() + at));
      }
    }
  }
}

TEST_CASE("variants by hand", "[oracle]") {
  Problem p;
  p.Nq = 2;
  p.Nk = 4;
  p.d = 1;
  const std::vector<float> no_scores = {0, 0}, K = {0, 0, 0, 0}, V = {1, 2, 4, 8};
  SECTION("a prefix lets rows see keys behind their own") {
    p.causal = true;
    p.prefix = 4;
    CHECK(oracle_forward({p, no_scores, K, V}).O == std::vector<double>{3.75, 3.75});
    p.prefix = 3;  // what row 0 sees anyway
    CHECK(std::abs(oracle_forward({p, no_scores, K, V}).O[0] - 7. / 3) < 1e-12);
  }
  SECTION("a sink takes its part, and a row that sees no key has it alone") {
    p.sinks = true;
    Inputs inputs{p, no_scores, K, V};
    inputs.sinks = {std::log(4.f)};
    CHECK(std::abs(oracle_forward(inputs).O[0] - 15. / 8) < 1e-7);
    CHECK(std::abs(oracle_forward(inputs).L[0] - std::log(8)) < 1e-7);
    inputs.problem.window = {-1, 0};
    inputs.problem.Nk = 1;
    inputs.K = {0};
    inputs.V = {1};
    CHECK(oracle_forward(inputs).O[0] == 0);
    CHECK(std::abs(oracle_forward(inputs).L[0] - std::log(4)) < 1e-7);
  }
  SECTION("ALiBi takes the slope for each key of distance") {
    p.alibi = true;
    Inputs inputs{p, no_scores, K, V};
    inputs.slopes = {std::log(2.f)};
    // Row 0's own key is key 2: 1/4, 1/2, 1 and 1/2.
    CHECK(std::abs(oracle_forward(inputs).O[0] - (0.25 + 1 + 4 + 4) / 2.25) < 1e-6);
  }
}

TEST_CASE("a block map leaves out blocks of a head", "[oracle]") {
  Problem p{.batch = 2, .q_heads = 2, .Nq = 130, .Nk = 260, .d = 1};
  p.block_map = {
      .batch = 2, .heads = 1, .rows = 2, .keys = 3, .live = {1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1, 0}};
  p.validate();
  Inputs inputs = random_inputs(p, 2);
  inputs.Q.assign(inputs.Q.size(), 0);  // all scores are 0
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t j = 0; j < 260; ++j)
      inputs.V[b * 260 + j] = static_cast<float>(j / 128);  // its block
  }
  const Result<double> result = oracle_forward(inputs);
  const auto row = [&](std::int64_t b, std::int64_t h, std::int64_t i) { return (b * 2 + h) * 130 + i; };
  for (std::int64_t h = 0; h < 2; ++h) {
    CHECK(std::abs(result.O[row(0, h, 127)] - 2. * 4 / 132) < 1e-12);  // 128 keys of block 0, 4 of block 2
    CHECK(std::abs(result.L[row(0, h, 127)] - std::log(132)) < 1e-12);
    CHECK(result.O[row(0, h, 128)] == 0);  // no key
    CHECK(result.L[row(0, h, 128)] == -std::numeric_limits<double>::infinity());
    CHECK(std::abs(result.O[row(1, h, 0)] - 1) < 1e-12);
    CHECK(std::abs(result.O[row(1, h, 129)] - 0.5) < 1e-12);
  }
  CHECK(p.forward_flops() == 4. * 2 * (128 * 132 + 128 * 128 + 2 * 256));
}

TEST_CASE("a bias is added before the softcap, and -infinity hides a key", "[oracle]") {
  Problem p{.q_heads = 2, .Nq = 2, .Nk = 3, .d = 1, .bias_batch = 1, .bias_heads = 2, .bias_rows = 1};
  const float hidden = -std::numeric_limits<float>::infinity();
  Inputs inputs{.problem = p,
                .Q = {0, 0, 0, 0},
                .K = {0, 0, 0},
                .V = {1, 2, 3},
                .bias = {std::log(2.f), 0, hidden, hidden, hidden, hidden}};
  const Result<double> result = oracle_forward(inputs);
  CHECK(std::abs(result.O[0] - 4. / 3) < 1e-7);
  CHECK(result.O[0] == result.O[1]);
  CHECK(result.O[2] == 0);
  CHECK(std::isinf(result.L[3]));
  CHECK(plain_forward(inputs, Dtype::fp32).O[3] == 0);
  for (const Gradients<double>& gradients :
       {oracle_backward(inputs, {1, 1, 1, 1}),
        oracle_backward_from(inputs, saved_forward(inputs), {1, 1, 1, 1})}) {
    CHECK(std::abs(gradients.dbias[0] + gradients.dbias[1]) < 1e-6);
    CHECK(std::abs(gradients.dbias[0] + 4. / 9) < 1e-6);  // of two rows 2/3 (1 - 4/3) each
    CHECK(gradients.dbias[2] == 0);
    CHECK(gradients.dbias[4] == 0);
  }
  Inputs one_key = inputs;
  one_key.bias[1] = hidden;
  CHECK(change_without_key(one_key, oracle_forward(one_key), Dropped::heaviest) ==
        std::vector<double>{-1, -1, 0, 0});  // nothing is left
  inputs.problem.softcap = 2;
  inputs.bias = {2, 0, 0, 0, 0, 0};
  const double first = std::exp(2 * std::tanh(1.));
  CHECK(std::abs(oracle_forward(inputs).O[0] - (first + 5) / (first + 2)) < 1e-7);
}

TEST_CASE("Philox gives the published numbers", "[oracle]") {
  const auto same = [](const Words& got, const Words& published) {
    return std::ranges::equal(got.w, published.w);
  };
  // The known answers of Random123, https://github.com/DEShawResearch/random123
  CHECK(same(philox<7>({{0, 0, 0, 0}}, 0, 0), {{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}}));
  CHECK(same(philox<10>({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  CHECK(same(philox<10>({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
             {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  CHECK(same(philox<10>({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
             {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST_CASE("dropout leaves out its share, everywhere alike, and keeps the mean", "[oracle]") {
  for (const float share : {0.1f, 0.5f, 0.9f}) {
    const Dropout dropout{share, 42};
    const double kept = dropout.kept() / 256.;
    CHECK(std::abs(1 - kept - static_cast<double>(share)) <= 1. / 512);
    const std::int64_t heads = 4, rows = 256, keys = 256;
    double all = 0, sum = 0;
    std::vector<double> of_head(heads), of_row(rows), of_key(keys), of_byte(32);
    // Neighbours that both stay: of a row, of a key, of a head, and of the next seed.
    std::vector<double> both(4);
    const auto stays = [&](std::int64_t h, std::int64_t i, std::int64_t j) {
      return dropout.factor(h, i, j) != 0 ? 1 : 0;
    };
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < keys; ++j) {
          const int now = stays(h, i, j);
          all += 1;
          sum += static_cast<double>(dropout.factor(h, i, j));
          of_head[h] += now;
          of_row[i] += now;
          of_key[j] += now;
          of_byte[i / 8 % 2 * 16 + j % 32 / 8 * 4 + j % 4] += now;
          both[0] += now * stays(h, i, j + 1);
          both[1] += now * stays(h, i + 1, j);
          both[2] += now * stays(h + 1, i, j);
          both[3] += now * (Dropout{share, 43}.factor(h, i, j) != 0 ? 1 : 0);
        }
      }
    }
    CHECK(std::abs(sum / all - 1) < 0.02);
    // Each count is binomial: within five standard deviations, of about 600 counts.
    const auto near = [&](double count, double of, double chance) {
      return std::abs(count - of * chance) < 5 * std::sqrt(of * chance * (1 - chance));
    };
    for (const auto& counts : {of_head, of_row, of_key, of_byte}) {
      for (double count : counts) CHECK(near(count, all / static_cast<double>(counts.size()), kept));
    }
    for (double count : both) CHECK(near(count, all, kept * kept));
  }
}

TEST_CASE("plain computation in fp32 and bf16 is near the oracle, and no nearer than it can be",
          "[oracle]") {
  Problem p;
  p.Nq = p.Nk = 64;
  p.dtype = Dtype::bf16;
  const Inputs inputs = random_inputs(p, 5);
  const Result<double> oracle = oracle_forward(inputs);
  const auto worst = [&](Dtype dtype) {
    const Result<float> plain = plain_forward(inputs, dtype);
    double worst = 0;
    for (std::size_t i = 0; i < plain.O.size(); ++i)
      worst = std::max(worst, std::abs(plain.O[i] - oracle.O[i]));
    return worst;
  };
  CHECK(worst(Dtype::fp32) > 0);
  CHECK(worst(Dtype::fp32) < 2e-6);
  CHECK(worst(Dtype::bf16) > 1e-4);
  CHECK(worst(Dtype::bf16) < 2e-2);
}

}  // namespace
