// Stage 01: the online softmax. One pass over the keys, with a running maximum, a running sum and an
// accumulator that is rescaled whenever the maximum grows. No score is kept.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/attention/counted.hpp"
#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"

namespace flashladder::stage_01 {
namespace {

/// Score is float, or Counted when a test counts how often the scores are read.
template <class Score>
void forward(const Forward& call) {
  const Problem& p = call.problem;
  const float scale = p.softmax_scale();
  auto acc = call.workspace.array<float>(p.d);  // [d], sum over the keys so far of exp(S_ij - m) V_j

  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const auto [Q, K, V, O, L] = call.head(b, h);

      for (std::int64_t i = 0; i < p.Nq; ++i) {
        const std::int64_t visible = p.visible_keys(i);
        float m = -std::numeric_limits<float>::infinity();  // maximum of the scores so far
        float l = 0;                                        // sum of exp(S_ij - m) so far
        for (std::int64_t c = 0; c < p.d; ++c) acc[c] = 0;

        for (std::int64_t j = 0; j < visible; ++j) {
          float dot = 0;
          for (std::int64_t c = 0; c < p.d; ++c) dot += Q[i][c] * K[j][c];
          const Score S_ij = scale * dot;

          // lab: update m, l and acc with this key; read the score once, and keep none
          // The only read of this score. Both sums so far are relative to m: e^(m - m_new) makes them
          // relative to m_new.
          const float s = S_ij;
          const float m_new = std::max(m, s);
          const float rescale = std::exp(m - m_new);  // m = -inf at the first key: rescale = 0
          const float P_ij = std::exp(s - m_new);
          l = rescale * l + P_ij;
          for (std::int64_t c = 0; c < p.d; ++c) acc[c] = rescale * acc[c] + P_ij * V[j][c];
          m = m_new;
          // end of lab
        }

        // lab: O and L of the row, also of a row that sees no key
        for (std::int64_t c = 0; c < p.d; ++c) O[i][c] = visible > 0 ? acc[c] / l : 0;
        L[i] = m + std::log(l);  // a row that sees no key has m = -inf, l = 0: L = -inf
        // end of lab
      }
    }
  }
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 1,
    .name = "online_softmax_cpu",
    .title = "online softmax",
    .idea = "one pass over the keys with running m, l and a rescaled accumulator",
    .claim = "extra memory 2 Nq Nk -> d elements; reads of every score 3 -> 1",
    .before = 0,
    .supports = {.dtypes = fp32_only},
    .forward = forward<float>,
    .forward_counting = forward<Counted>,
};

}  // namespace flashladder::stage_01
