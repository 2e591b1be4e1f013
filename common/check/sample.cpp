#include "common/check/sample.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "common/check/inputs.hpp"
#include "common/check/run.hpp"

namespace flashladder {
namespace {

constexpr std::int64_t chunk_rows = 32, most_chunks = 5, most_heads = 4;

/// Up to `count` numbers from `first` to `last`, both of them among them, as far apart as they can be.
std::set<std::int64_t> spread(std::int64_t first, std::int64_t last, std::int64_t count) {
  std::set<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.insert(first + (last - first) * i / (count - 1));
  return numbers;
}

std::vector<float> part(const std::vector<float>& values, std::int64_t first, std::int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

/// The bias of some rows of a query head of all batch entries, and of the first keys; of 1 row where all
/// share one.
std::vector<float> bias_part(const Inputs& inputs, std::int64_t head, std::int64_t first, std::int64_t rows,
                             std::int64_t keys) {
  const Problem& p = inputs.problem;
  std::vector<float> all;
  if (!p.has_bias()) return all;
  for (std::int64_t i = first; i < first + std::min(rows, p.bias_rows); ++i) {
    const std::vector<float> row =
        part(inputs.bias, p.bias_row(head / p.q_heads, head % p.q_heads, i) * p.Nk, keys);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

std::int64_t heads_of(const Problem& p) {
  return p.batch * p.q_heads;
}

/// The larger of the two; NaN is larger than any number, and makes every comparison with the bound fail.
double worse(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

double cost(const Problem& p) {
  return static_cast<double>(heads_of(p)) * static_cast<double>(p.visible_pairs()) *
         static_cast<double>(p.d);
}

/// One head of `problem`, no longer than a second or so takes.
Problem small_part(const Problem& problem, std::int64_t Nq, std::int64_t Nk) {
  Problem small = problem;
  small.batch = small.q_heads = small.kv_heads = 1;
  small.Nq = std::min(problem.Nq, Nq);
  small.Nk = std::min(problem.Nk, Nk);
  small.causal = false;
  small.prefix = 0;  // of the causal mask
  small.packing = {};
  small.block_map = {};
  small.bias_batch = std::min<std::int64_t>(problem.bias_batch, 1);
  small.bias_heads = std::min<std::int64_t>(problem.bias_heads, 1);
  small.bias_rows = std::min(problem.bias_rows, small.Nq);
  return small;
}

/// The shortest of three runs: the first warms up, and other programs may slow one down.
template <class F>
double seconds_of(F f) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 3; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    shortest =
        std::min(shortest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return shortest;
}

}  // namespace

std::vector<Chunk> sample_of(const Inputs& inputs) {
  const Problem& p = inputs.problem;
  const std::int64_t rows = std::min(chunk_rows, p.Nq);
  // The last row of each chunk must see a key. Those before it may see none.
  const std::int64_t first_seeing = p.packing.sequences > 0 ? 0 : p.mask().rows(0).first;
  const std::int64_t from = std::clamp<std::int64_t>(first_seeing - rows / 2, 0, p.Nq - rows);
  std::vector<Chunk> sample;
  for (const std::int64_t head : spread(0, heads_of(p) - 1, most_heads)) {
    const std::int64_t kv = head / p.q_heads * p.kv_heads + p.kv_head(head % p.q_heads);
    for (const std::int64_t first : spread(from, p.Nq - rows, most_chunks)) {
      Problem own = p;
      own.batch = own.q_heads = own.kv_heads = 1;
      own.Nq = rows;
      own.Nk = std::max<std::int64_t>(p.visible_keys(first + rows - 1), 1);
      own.block_map = {};  // it is that of the whole
      if (p.has_bias()) {
        own.bias_batch = own.bias_heads = 1;
        own.bias_rows = std::min(rows, p.bias_rows);
      }
      const std::int64_t h = head % p.q_heads;
      sample.push_back({head, first,
                        Inputs{.problem = own,
                               .Q = part(inputs.Q, (head * p.Nq + first) * p.d, rows * p.d),
                               .K = part(inputs.K, kv * p.Nk * p.d, own.Nk * p.d),
                               .V = part(inputs.V, kv * p.Nk * p.d, own.Nk * p.d),
                               .slopes = p.alibi ? part(inputs.slopes, h, 1) : std::vector<float>(),
                               .bias = bias_part(inputs, head, first, rows, own.Nk),
                               .sinks = p.sinks ? part(inputs.sinks, h, 1) : std::vector<float>(),
                               .part = PartOf{p, head, first}}});
    }
  }
  return sample;
}

ExpectedSample expect_sample(const Problem& problem, const std::vector<Chunk>& sample,
                             std::vector<Expected> expected) {
  ExpectedSample result{std::move(expected), {}};
  double squares = 0, rows = 0;
  result.all.dtype = result.chunks.front().dtype;
  for (std::size_t c = 0; c < sample.size(); ++c) {
    const Expected& one = result.chunks[c];
    result.all.O.max_abs = worse(result.all.O.max_abs, one.O.max_abs);
    result.all.L = worse(result.all.L, one.L);
    squares += one.O.norm * one.O.norm;
    rows += static_cast<double>(sample[c].inputs.problem.Nq);
  }
  for (Expected& one : result.chunks) {  // a few rows are plain by luck, which asks the impossible
    one.O.max_abs = result.all.O.max_abs;
    one.O.norm = std::sqrt(squares);
    one.L = result.all.L;
  }
  result.all.O.norm = std::sqrt(squares * static_cast<double>(heads_of(problem) * problem.Nq) / rows);
  // The row that is off most is perhaps not in the sample.
  for (double* bound : {&result.all.O.max_abs, &result.all.O.norm, &result.all.L}) *bound *= 2;
  return result;
}

Verdict check_sample(const Result<float>& result, const Problem& p, const std::vector<Chunk>& sample,
                     const ExpectedSample& expected) {
  Verdict worst;
  std::optional<Verdict> blind;  // asked last: what is wrong is said first
  double squares = 0;
  for (std::size_t c = 0; c < sample.size(); ++c) {
    const auto& [head, first, inputs] = sample[c];
    const std::int64_t at = head * p.Nq + first, rows = inputs.problem.Nq;
    const Result<float> own{part(result.O, at * p.d, rows * p.d), part(result.L, at, rows)};
    const Expected& right = expected.chunks[c];
    Verdict one = check_forward(own, right);
    if (!one.passed) {
      one.why = "head " + std::to_string(head) + ", rows " + std::to_string(first) + " to " +
                std::to_string(first + rows - 1) + ": " + one.why;
      if (!one.blind) return one;
      if (!blind) blind = one;
    }
    if (c == 0 || one.error > worst.error) worst = one;
    for (std::size_t i = 0; i < own.O.size(); ++i) {
      const double delta = static_cast<double>(own.O[i]) - right.oracle.O[i];
      squares += delta * delta;
    }
  }
  const auto fail = [&](const std::string& why) {
    worst.passed = false;
    worst.why = why;
    return worst;
  };
  const double norm = std::sqrt(squares), allowed = expected.chunks.front().O.norm;
  if (!(norm <= allowed)) {
    char text[96];
    std::snprintf(text, sizeof text, "O of the sample is off by %.3g in the 2-norm, allowed %.3g", norm,
                  allowed);
    return fail(text);
  }
  // A row whose keys a bias hides is known to the oracle alone.
  for (std::int64_t row = 0; row < heads_of(p) * p.Nq; ++row) {
    const bool hidden = p.has_bias() && result.L[row] == -std::numeric_limits<float>::infinity();
    const bool sees_none = hidden || !p.sees_any_key(row / p.Nq, row % p.Nq);
    const float L = result.L[row];
    if (sees_none && !p.sinks ? L != -std::numeric_limits<float>::infinity() : !std::isfinite(L))
      return fail("L[" + std::to_string(row) + "] is " + std::to_string(L));
    for (std::int64_t i = row * p.d; i < (row + 1) * p.d; ++i) {
      if (sees_none ? result.O[i] != 0 : !std::isfinite(result.O[i]))
        return fail("O[" + std::to_string(i) + "] is " + std::to_string(result.O[i]));
    }
  }
  return blind.value_or(worst);
}

Verdict run_and_check_sample(const Stage& stage, const Inputs& inputs, const std::vector<Chunk>& sample,
                             const ExpectedSample& expected, Result<float>* result) {
  ForwardRun run(stage, inputs);
  Workspace workspace(free_memory(stage.backend));
  workspace.poison = true;
  run.run(workspace);
  *result = run.result();
  Verdict verdict = check_sample(*result, inputs.problem, sample, expected);
  std::string why = run.defect();
  if (why.empty() && workspace.bytes_in_use() != 0) why = "the stage did not give its extra memory back";
  if (!why.empty()) {
    verdict.passed = verdict.blind = false;
    verdict.why = why;
  }
  return verdict;
}

double oracle_seconds(const Problem& problem, Pass pass) {
  const Problem small = small_part(problem, 128, 1024);
  const Inputs inputs = random_inputs(small, 1);
  const double seconds = seconds_of([&] {
    if (pass == Pass::backward) {
      expect_backward(inputs, saved_forward(inputs), random_output_gradient(small, 1), small.dtype);
    } else {
      expect_forward(inputs, small.dtype);
    }
  });
  // Backward, each key/value head is one thread's.
  const double threads = std::max(1U, std::thread::hardware_concurrency());
  const double at_once =
      pass == Pass::backward
          ? std::min<double>(static_cast<double>(problem.batch * problem.kv_heads), threads)
          : 1;
  return seconds * cost(problem) / cost(small) / at_once;
}

double stage_seconds(const Stage& stage, const Problem& problem) {
  const Problem small = small_part(problem, 1024, 1024);
  const Inputs inputs = random_inputs(small, 1);
  try {
    ForwardRun run(stage, inputs);
    Workspace workspace(free_memory(stage.backend));
    return seconds_of([&] { run.run(workspace); }) * cost(problem) / cost(small);
  } catch (const std::exception&) {  // the stage itself will say why
    return 0;
  }
}

}  // namespace flashladder
