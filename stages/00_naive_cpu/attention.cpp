// Stage 00: attention as it is defined. The scores S and the probabilities P of one head are stored in
// full.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/attention/counted.hpp"
#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"

namespace flashladder::stage_00 {
namespace {

/// Score is float, or Counted when a test counts how often the scores are read.
template <class Score>
void forward(const Forward& call) {
  const Problem& p = call.problem;
  const float scale = p.softmax_scale();
  auto S = call.workspace.array<Score>(p.Nq * p.Nk);  // [Nq, Nk]
  auto P = call.workspace.array<float>(p.Nq * p.Nk);  // [Nq, Nk]

  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const auto [Q, K, V, O, L] = call.head(b, h);

      // S = scale * Q K^T, where row i sees its first visible_keys(i) keys.
      // lab: the scores of every query row with the keys that it sees
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        for (std::int64_t j = 0; j < p.visible_keys(i); ++j) {
          float dot = 0;
          for (std::int64_t c = 0; c < p.d; ++c) dot += Q[i][c] * K[j][c];
          S[i * p.Nk + j] = scale * dot;
        }
      }
      // end of lab

      // P = softmax(S), row by row and safely: exp(S - m) cannot overflow. Three passes over the scores.
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        const Score* S_i = &S[i * p.Nk];  // [Nk]
        const std::int64_t visible = p.visible_keys(i);
        // lab: the row's probabilities in P, and its L
        float m = -std::numeric_limits<float>::infinity();
        for (std::int64_t j = 0; j < visible; ++j) m = std::max<float>(m, S_i[j]);
        float l = 0;
        for (std::int64_t j = 0; j < visible; ++j) l += std::exp(S_i[j] - m);
        for (std::int64_t j = 0; j < visible; ++j) P[i * p.Nk + j] = std::exp(S_i[j] - m) / l;
        L[i] = m + std::log(l);  // a row that sees no key has m = -inf, l = 0: L = -inf
        // end of lab
      }

      // O = P V.
      // lab: every query row's sum of the values, weighted by P
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        for (std::int64_t c = 0; c < p.d; ++c) O[i][c] = 0;
        for (std::int64_t j = 0; j < p.visible_keys(i); ++j) {
          for (std::int64_t c = 0; c < p.d; ++c) O[i][c] += P[i * p.Nk + j] * V[j][c];
        }
      }
      // end of lab
    }
  }
}

/// The definition's gradients: P and dS are stored in full, as the forward stores S and P.
void backward(const Backward& call) {
  const Problem& p = call.problem;
  const float scale = p.softmax_scale();
  auto P = call.workspace.array<float>(p.Nq * p.Nk);   // [Nq, Nk]
  auto dS = call.workspace.array<float>(p.Nq * p.Nk);  // [Nq, Nk]

  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const auto [Q, K, V, O, dO, L, dQ, dK, dV] = call.head(b, h);

      // P = exp(S - L), the softmax again; dP = dO V^T; dS = P * (dP - D) with D = rowsum(dO * O).
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        float D = 0;
        for (std::int64_t c = 0; c < p.d; ++c) D += dO[i][c] * O[i][c];
        for (std::int64_t j = 0; j < p.visible_keys(i); ++j) {
          float dot = 0, dP = 0;
          for (std::int64_t c = 0; c < p.d; ++c) dot += Q[i][c] * K[j][c];
          for (std::int64_t c = 0; c < p.d; ++c) dP += dO[i][c] * V[j][c];
          P[i * p.Nk + j] = std::exp(scale * dot - L[i]);
          dS[i * p.Nk + j] = P[i * p.Nk + j] * (dP - D);
        }
      }

      // The first query head of a group starts the sums that the whole group adds into.
      if (h % (p.q_heads / p.kv_heads) == 0) {
        for (std::int64_t j = 0; j < p.Nk; ++j) {
          for (std::int64_t c = 0; c < p.d; ++c) dK[j][c] = dV[j][c] = 0;
        }
      }

      // dV = P^T dO; dQ = scale * dS K; dK = scale * dS^T Q.
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        for (std::int64_t c = 0; c < p.d; ++c) dQ[i][c] = 0;
        for (std::int64_t j = 0; j < p.visible_keys(i); ++j) {
          for (std::int64_t c = 0; c < p.d; ++c) {
            dV[j][c] += P[i * p.Nk + j] * dO[i][c];
            dQ[i][c] += scale * dS[i * p.Nk + j] * K[j][c];
            dK[j][c] += scale * dS[i * p.Nk + j] * Q[i][c];
          }
        }
      }
    }
  }
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 0,
    .name = "naive_cpu",
    .title = "the definition",
    .idea = "softmax(Q K^T) V as it is written, with S and P stored in full",
    .claim = "extra memory 2 Nq Nk elements; 3 reads of every score",
    .before = 0,
    .supports = {.dtypes = fp32_only},
    .forward = forward<float>,
    .forward_counting = forward<Counted>,
    .backward = backward,
};

}  // namespace flashladder::stage_00
