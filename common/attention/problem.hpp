#pragma once
#include <cstdint>
#include <string>

#include "common/attention/dtype.hpp"
#include "common/attention/mask.hpp"

namespace flashladder {

/// The largest head dimension any stage takes.
inline constexpr std::int64_t max_head_dim = 256;

/// One attention problem: softmax(scale * Q K^T) V for every batch entry and head.
///
/// Q and O are [batch, q_heads, Nq, d], K and V are [batch, kv_heads, Nk, d], L is [batch, q_heads, Nq].
struct Problem {
  std::int64_t batch = 1;    ///< Independent entries.
  std::int64_t q_heads = 1;  ///< Query heads of each.
  std::int64_t kv_heads =
      1;                ///< Divides q_heads: 1 is multi-query, fewer than q_heads grouped-query attention.
  std::int64_t Nq = 1;  ///< Query rows.
  std::int64_t Nk = 1;  ///< Keys.
  std::int64_t d = 64;  ///< Head dimension.
  bool causal = false;  ///< Query i sees key j when j <= i + (Nk - Nq): aligned at the bottom right.
  float scale = 0;      ///< Factor on the scores; 0 stands for 1/sqrt(d).
  Dtype dtype = Dtype::fp32;  ///< Of Q, K, V and O.

  /// The factor on the scores, 1/sqrt(d) unless one was given.
  float softmax_scale() const;

  /// The key/value head that query head `h` reads. Nothing is copied for it.
  std::int64_t kv_head(std::int64_t h) const { return h / (q_heads / kv_heads); }

  /// Which rows see which keys.
  Mask<std::int64_t> mask() const { return {Nq, Nk, causal}; }

  /// One more than the last key that query row `i` sees: it sees keys 0 ... visible_keys(i) - 1.
  std::int64_t visible_keys(std::int64_t i) const { return mask().keys_end(i); }

  /// Pairs (query, key) that see each other, in one head.
  std::int64_t visible_pairs() const;

  /// FLOPs of the forward pass as the papers count them: 4 * Nq * Nk * d per head, halved when causal.
  double forward_flops() const;

  /// Throws UsageError unless all sizes are at least 1, d <= max_head_dim, kv_heads divides q_heads, scale
  /// is finite, and each tensor can be addressed with 64 bits.
  void validate() const;
};

/// "B=1 H=12 N=512 d=32 fp32": what there is to tell, and no more (Hkv, Nq and Nk, causal where they
/// matter).
std::string to_string(const Problem& problem);

}  // namespace flashladder
