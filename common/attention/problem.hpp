#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/attention/dtype.hpp"
#include "common/attention/mask.hpp"
#include "common/attention/philox.hpp"

namespace flashladder {

/// The largest head dimension any stage takes.
inline constexpr std::int64_t max_head_dim = 256;

/// How many keys around its own a row sees. -1: all.
struct Window {
  std::int64_t left = -1;   ///< Before its own.
  std::int64_t right = -1;  ///< Behind its own; under the causal mask none.

  /// Whether it hides any keys, but for those of the causal mask.
  bool hides(bool causal) const { return left >= 0 || (right >= 0 && !causal); }
};

/// Probabilities that are left out, each by chance, and the others made larger for it.
struct Dropout {
  float p = 0;             ///< How many, from 0 to below 1; in effect the nearest multiple of 1/256.
  std::uint64_t seed = 0;  ///< Another seed leaves out others.
  /// Whether the kernels read the seed from memory, Forward::dropout_seed, when they run: whoever replays
  /// a CUDA graph has another one there each time. `seed` is then for those who compare with them.
  bool seed_in_memory = false;

  /// How many of 256 stay.
  int kept() const { return 256 - static_cast<int>(std::lround(256 * p)); }
  /// What becomes of P of row i and key j of query head `head` of all batch entries: its factor, 0 or one
  /// that keeps the mean; 1 where nothing is left out.
  float factor(std::int64_t head, std::int64_t i, std::int64_t j) const {
    if (p == 0) return 1;
    const int row = static_cast<int>(i), key = static_cast<int>(j);
    const bool stays = dropout_byte(dropout_bytes(seed, head, row, key), row, key) < kept();
    return stays ? 256.f / static_cast<float>(kept()) : 0.f;
  }
};

/// Sequences that lie one after the other in the rows and the keys of a single batch entry. Each is
/// attention of its own, as if it were a batch entry: masks and distances are those of the sequence.
///
/// Names are flash-attention's. The positions are known to the host but where a GPU alone has them: then
/// they are empty here.
struct Packing {
  std::int64_t sequences = 0;       ///< How many; 0: nothing is packed.
  bool partly_used = false;         ///< Whether of each sequence only the first keys are used.
  std::vector<int> cu_seqlens_q{};  ///< [sequences + 1]: where each begins in the rows, and the last ends.
  std::vector<int> cu_seqlens_k{};  ///< The same in the keys.
  std::vector<int> seqused_k{};     ///< [sequences], where they are partly used: how many keys of each are.

  /// Those with these positions.
  static Packing of(std::vector<int> cu_seqlens_q, std::vector<int> cu_seqlens_k,
                    std::vector<int> seqused_k = {}) {
    return {static_cast<std::int64_t>(cu_seqlens_q.size()) - 1, !seqused_k.empty(), std::move(cu_seqlens_q),
            std::move(cu_seqlens_k), std::move(seqused_k)};
  }
};

/// Which blocks of 128 rows and 128 keys have pairs that see each other, where the masks let them; in the
/// others no row sees a key. It is known to the host but where a GPU alone has it: then `live` is empty.
struct BlockMap {
  static constexpr std::int64_t size = 128;  ///< Rows, and keys, of a block; the last may have fewer.

  std::int64_t batch = 0;   ///< Maps for so many batch entries, 1 where all share it; 0: there is none.
  std::int64_t heads = 0;   ///< The same of query heads.
  std::int64_t rows = 0;    ///< Blocks of rows, ceil(Nq / 128).
  std::int64_t keys = 0;    ///< Blocks of keys, ceil(Nk / 128).
  std::vector<int> live{};  ///< [batch, heads, rows, keys]: not 0 where rows may see keys.

  /// Whether there is one.
  bool given() const { return batch > 0; }
  /// How many blocks it tells of.
  std::int64_t blocks() const { return batch * heads * rows * keys; }
  /// Whether row i and key j of query head `h` of batch entry `b` are in a live block.
  bool is_live(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return live[((b % batch * heads + h % heads) * rows + i / size) * keys + j / size] != 0;
  }
  /// That of query head `h` of batch entry `b` alone.
  BlockMap of(std::int64_t b, std::int64_t h) const;
};

/// Where a row is among packed sequences; else those are the batch entries, and this is the first.
struct Place {
  std::int64_t sequence = 0;  ///< Its number.
  std::int64_t row = 0;       ///< The row in it.
  std::int64_t key0 = 0;      ///< Where its keys begin.
};

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
  Window window = {};   ///< Around key i + (Nk - Nq) of query i.
  float softcap = 0;    ///< s becomes softcap * tanh(s / softcap), the scale included; 0: it stays.
  std::int64_t prefix = 0;  ///< Every query sees the first so many keys, too; under the causal mask alone.
  bool alibi = false;  ///< From a score slope * |i + (Nk - Nq) - j| is taken, of each head its own slope.
  /// Numbers [bias_batch, bias_heads, bias_rows, Nk] are added to the scores, which have the scale in them,
  /// before a softcap; -inf hides a key. 0: none are.
  std::int64_t bias_batch = 0;
  std::int64_t bias_heads = 0;  ///< As bias_batch 1, where all share them, or the scores' own size.
  std::int64_t bias_rows = 0;   ///< As bias_heads.
  bool sinks = false;    ///< Each head has a score of its own, whose exponential is in the softmax's sum.
  Dropout dropout = {};  ///< Of P, after the softmax.
  Packing packing = {};  ///< Sequences that follow each other in the rows and keys.
  BlockMap block_map = {};    ///< Blocks that are left out.
  float scale = 0;            ///< Factor on the scores; 0 stands for 1/sqrt(d).
  Dtype dtype = Dtype::fp32;  ///< Of Q, K, V and O.

  /// The factor on the scores, 1/sqrt(d) unless one was given.
  float softmax_scale() const;

  /// The key/value head that query head `h` reads. Nothing is copied for it.
  std::int64_t kv_head(std::int64_t h) const { return h / (q_heads / kv_heads); }

  /// Which rows see which keys, where nothing is packed.
  Mask<std::int64_t> mask() const {
    return {Nq, Nk, causal, window.left, window.right, std::min(prefix, Nk)};
  }

  /// Where row i is.
  Place place(std::int64_t i) const;
  /// What packed sequence `number` is by itself. It may have no rows, or no keys.
  Problem sequence(std::int64_t number) const;
  /// All of them, in their order; the problem itself where nothing is packed.
  std::vector<Problem> all_sequences() const;

  /// The keys that query row `i` sees.
  Interval<std::int64_t> keys(std::int64_t i) const;
  /// One more than the last of them: without a window and packed sequences keys 0 ... visible_keys(i) - 1.
  std::int64_t visible_keys(std::int64_t i) const { return keys(i).end; }

  /// Whether numbers are added to the scores.
  bool has_bias() const { return bias_batch > 0; }
  /// Which of all rows of these numbers is that of row `i` of query head `h` of batch entry `b`.
  std::int64_t bias_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return (b % bias_batch * bias_heads + h % bias_heads) * bias_rows + i % bias_rows;
  }

  /// How far key j is from query i's own.
  std::int64_t distance(std::int64_t i, std::int64_t j) const;
  /// What dropout makes of P of row i and key j of query head `head` of all batch entries: its factor.
  float dropout_factor(std::int64_t head, std::int64_t i, std::int64_t j) const;

  /// What becomes of a score, which has the scale and the bias in it, before ALiBi.
  template <class T>
  T score(T s) const {
    const T cap = softcap;
    return softcap == 0 ? s : cap * std::tanh(s / cap);
  }
  /// The derivative of score() where it has returned this.
  template <class T>
  T slope(T score) const {
    const T part = softcap == 0 ? T(0) : score / static_cast<T>(softcap);
    return 1 - part * part;
  }

  /// Whether a block map, where there is one, leaves query head `head` of all batch entries the pair of row
  /// i and key j.
  bool is_in_live_block(std::int64_t head, std::int64_t i, std::int64_t j) const {
    return !block_map.given() || block_map.is_live(head / q_heads, head % q_heads, i, j);
  }

  /// Whether row i of query head `head` of all batch entries sees a key; without regard to a bias.
  bool sees_any_key(std::int64_t head, std::int64_t i) const;

  /// Pairs (query, key) that see each other, in one head; without regard to a block map.
  std::int64_t visible_pairs() const;

  /// FLOPs of the forward pass as the papers count them: 4 * Nq * Nk * d per head, halved when causal; with
  /// a window, a prefix or packed sequences 4 * visible_pairs() * d, and with a block map of those pairs of
  /// each head that it leaves.
  double forward_flops() const;

  /// Throws UsageError unless all sizes are at least 1, d <= max_head_dim, kv_heads divides q_heads, the
  /// window is not below -1, scale and softcap are finite, softcap is not negative, a prefix is not
  /// negative and has the causal mask and no window, a bias has the scores' sizes or 1 and no packed
  /// sequences, a block map likewise in blocks, dropout is from 0 to below 1, packed sequences are of
  /// a single batch entry and take all of its rows and keys, and each tensor can be addressed with 64 bits.
  void validate() const;
};

/// "B=1 H=12 N=512 d=32 fp32": what there is to tell, and no more (Hkv, Nq and Nk, causal, the
/// window and the other variants where they matter).
std::string to_string(const Problem& problem);

}  // namespace flashladder
