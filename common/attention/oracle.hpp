#pragma once
#include <cstdint>
#include <vector>

#include "common/attention/problem.hpp"

namespace flashladder {

/// Q, K, V of a problem as plain numbers, whatever a stage's dtype and memory layout: fp32 values that the
/// problem's dtype holds exactly, contiguous.
struct Inputs {
  Problem problem;       ///< What they make.
  std::vector<float> Q;  ///< [batch, q_heads,  Nq, d]
  std::vector<float> K;  ///< [batch, kv_heads, Nk, d]
  std::vector<float> V;  ///< [batch, kv_heads, Nk, d]
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
  std::vector<T> dQ;  ///< [batch, q_heads,  Nq, d]
  std::vector<T> dK;  ///< [batch, kv_heads, Nk, d]
  std::vector<T> dV;  ///< [batch, kv_heads, Nk, d]
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

/// How a plain computation adds up. All ways are as plain, and their errors differ by luck.
struct PlainWay {
  bool descending;  ///< From the last term to the first.
  bool fused;       ///< With fused multiply-adds: products are not rounded before they are added.
};

/// The ways that a stage's error is measured by.
inline constexpr PlainWay plain_ways[] = {{false, false}, {true, false}, {false, true}, {true, true}};

/// The same definition computed plainly in the precision of `dtype`: fp32 arithmetic, one term after the
/// other, with S, P and O rounded to `dtype`. Its error is the yardstick for a stage's error
/// (common/check/check.hpp).
Result<float> plain_forward(const Inputs& inputs, Dtype dtype, PlainWay way = plain_ways[0]);

/// O and L as a forward pass leaves them for the backward pass: its sums are fp32 in every dtype, L stays
/// so, and O is rounded where it is stored. (plain_forward in 16 bits rounds the scores too, and then L.)
Result<float> saved_forward(const Inputs& inputs);

/// What a forward pass may save for the backward pass beside L.
struct Statistics {
  std::vector<float> m;  ///< [batch, q_heads, Nq]: the largest score of each row; -inf where there is none.
  std::vector<float> l;  ///< [batch, q_heads, Nq]: its sum of exp(S - m).
  std::vector<float> P;  ///< [batch, q_heads, Nq, Nk]: exp(S - m) / l; 0 where a row does not see a key.
};

/// As a plain forward pass in fp32 leaves them; P, which takes memory, only where it is asked for.
Statistics plain_statistics(const Inputs& inputs, bool with_P);

/// As plain_forward in fp32, but the scores as tensor cores add them up, which cut off where others round.
/// What a stage on tensor cores cannot do better than.
Result<float> tensor_core_forward(const Inputs& inputs);

/// As plain_forward, with P = exp(S - L) and D = rowsum(dO * O) from the forward pass that was saved, as
/// every backward pass does that recomputes P; S, P, dP, dS and the gradients rounded to `dtype`.
Gradients<float> plain_backward(const Inputs& inputs, const Result<float>& saved,
                                const std::vector<float>& dO, Dtype dtype, PlainWay way = plain_ways[0]);

/// As plain_backward in fp32, but the scores as tensor cores add them up: P = exp(S - L) is then off by as
/// much as S is, and that is no rounding to 16 bits.
Gradients<float> tensor_core_backward(const Inputs& inputs, const Result<float>& saved,
                                      const std::vector<float>& dO);

}  // namespace flashladder
