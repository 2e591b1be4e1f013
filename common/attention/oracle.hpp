#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "common/attention/problem.hpp"

namespace flashladder {

/// Which rows of a larger problem those of a smaller one are: some of one query head, with its first keys.
struct PartOf {
  Problem whole;       ///< The larger one.
  std::int64_t head;   ///< The query head, of all batch entries.
  std::int64_t first;  ///< The first row.
};

/// Q, K, V of a problem as plain numbers, whatever a stage's dtype and memory layout: fp32 values that the
/// problem's dtype holds exactly, contiguous.
struct Inputs {
  Problem problem;                  ///< What they make.
  std::vector<float> Q;             ///< [batch, q_heads,  Nq, d]
  std::vector<float> K;             ///< [batch, kv_heads, Nk, d]
  std::vector<float> V;             ///< [batch, kv_heads, Nk, d]
  std::vector<float> slopes = {};   ///< [q_heads]; none without ALiBi.
  std::vector<float> bias = {};     ///< [bias_batch, bias_heads, bias_rows, Nk]; none without a bias.
  std::vector<float> sinks = {};    ///< [q_heads]; none without sinks.
  std::optional<PartOf> part = {};  ///< Where they are rows of a larger problem, which masks, ALiBi and
                                    ///< dropout are of.

  /// The problem whose rows and heads have numbers: the larger one, if there is one.
  const Problem& whole() const { return part ? part->whole : problem; }
  /// What is taken from the score of query head `h` for row i and key j; 0 without ALiBi.
  float alibi(std::int64_t h, std::int64_t i, std::int64_t j) const {
    return slopes.empty() ? 0 : slopes[h] * static_cast<float>(whole().distance(i, j));
  }
  /// The score that a head has beside those of its keys; -inf without sinks.
  float sink(std::int64_t h) const {
    return sinks.empty() ? -std::numeric_limits<float>::infinity() : sinks[h];
  }
};

/// What the forward pass gives. T is double for the oracle, float for a stage.
template <class T>
struct Result {
  std::vector<T> O;  ///< [batch, q_heads, Nq, d]
  std::vector<T> L;  ///< [batch, q_heads, Nq]
};

/// What the backward pass gives.
template <class T>
struct Gradients {
  std::vector<T> dQ;           ///< [batch, q_heads,  Nq, d]
  std::vector<T> dK;           ///< [batch, kv_heads, Nk, d]
  std::vector<T> dV;           ///< [batch, kv_heads, Nk, d]
  std::vector<T> dsinks = {};  ///< [q_heads]; none without sinks.
  std::vector<T> dbias = {};   ///< [bias_batch, bias_heads, bias_rows, Nk]; none without a bias.
};

/// Attention from its definition in fp64: S = scale * Q K^T, P = softmax(S), O = P V, L = max S + log sum
/// exp(S - max S). A row that sees no key gives O = 0 and L = -inf. Needs O(Nk) memory per thread.
Result<double> oracle_forward(const Inputs& inputs);

/// Its gradients for the output gradient dO [batch, q_heads, Nq, d], from the definition in fp64:
/// dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(P * dP)), dQ = scale * dS K, dK = scale * dS^T Q;
/// dK and dV are summed over the query heads that share them.
Gradients<double> oracle_backward(const Inputs& inputs, const std::vector<float>& dO);

/// As oracle_backward, with P = exp(S - L) and D = rowsum(dO * O) from the forward pass that was saved:
/// also right where `inputs` are some of the rows or some of the keys of a larger problem, for the
/// gradients that need no others.
Gradients<double> oracle_backward_from(const Inputs& inputs, const Result<float>& saved,
                                       const std::vector<float>& dO);

/// One of the keys that a row sees.
enum class Dropped {
  heaviest,  ///< The one with the largest P; of dQ and dK the one with the largest |dS|.
  first,
  last,
};

/// What is added to O where each row goes without one of its keys [batch, q_heads, Nq, d].
std::vector<double> change_without_key(const Inputs& inputs, const Result<double>& oracle, Dropped which);

/// What is added to the gradients where each row goes without one of its keys: a term of each sum.
/// @param saved  as of oracle_backward_from; null: P and D from the definition
Gradients<double> change_without_pair(const Inputs& inputs, const Result<float>* saved,
                                      const std::vector<float>& dO, Dropped which);

/// How a plain computation adds up. All ways are equally plain, and their errors differ by chance.
struct PlainWay {
  bool descending;  ///< From the last term to the first; of S the sum of scaled q, and not the scaled sum.
  bool fused;       ///< With fused multiply-adds: products are not rounded before they are added.
};

/// The ways that a stage's error is measured by.
inline constexpr PlainWay plain_ways[] = {{false, false}, {true, false}, {false, true}, {true, true}};

/// The same definition computed plainly in the precision of `dtype`: fp32 arithmetic, one term after the
/// other; P and O, which are an operand of a product and an output, are rounded to `dtype`. S stays fp32,
/// as in every stage. Its error is the yardstick for a stage's error (common/check/check.hpp).
Result<float> plain_forward(const Inputs& inputs, Dtype dtype, PlainWay way = plain_ways[0]);

/// O and L as a forward pass leaves them for the backward pass: plain_forward in fp32.
Result<float> saved_forward(const Inputs& inputs);

/// What a forward pass may save for the backward pass beside L.
struct Statistics {
  std::vector<float> m;  ///< [batch, q_heads, Nq]: the largest score of each row; -inf where there is none.
  std::vector<float> l;  ///< [batch, q_heads, Nq]: its sum of exp(S - m).
  std::vector<float> P;  ///< [batch, q_heads, Nq, Nk]: exp(S - m) / l; 0 where a row does not see a key.
};

/// As a plain forward pass in fp32 leaves them; P, which takes memory, only where it is asked for.
Statistics plain_statistics(const Inputs& inputs, bool with_P);

/// As plain_forward, but with the scores as tensor cores add them up, which cut off where others round. No
/// stage on tensor cores can be better.
Result<float> tensor_core_forward(const Inputs& inputs, Dtype dtype);

/// As plain_forward, with P = exp(S - L) and D = rowsum(dO * O) from the forward pass that was saved, as
/// every backward pass does that recomputes P. P, dS and the gradients are rounded to `dtype`; S and dP
/// stay fp32, as in every stage, and so does all that dbias is a sum of.
Gradients<float> plain_backward(const Inputs& inputs, const Result<float>& saved,
                                const std::vector<float>& dO, Dtype dtype, PlainWay way = plain_ways[0]);

/// As plain_backward, but with the scores as tensor cores add them up: P = exp(S - L) is then off by as
/// much as S is. They add up dP from -D on, as some stages do: where P is 1, D may be all of dP.
Gradients<float> tensor_core_backward(const Inputs& inputs, const Result<float>& saved,
                                      const std::vector<float>& dO, Dtype dtype);

}  // namespace flashladder
