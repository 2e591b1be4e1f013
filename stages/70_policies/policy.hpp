#pragma once
// What the kernels ask of a kind of attention, and the answers of plain attention.
#include "common/kernel/device.hpp"

namespace flashladder::stage_70 {
namespace {

/// An element of S: row i + di and key j + dj. i and j are of a thread, and the rest is known when a kernel
/// is compiled.
struct Element {
  int i, j, di, dj;
};

/// Plain attention, with the causal mask or without. Another kind is a struct that begins as this one, and
/// answers some of the questions in its own way.
template <bool with_mask>
struct Plain {
  /// Whether later rows see more keys: then their blocks come first, backward those of the first keys.
  static constexpr bool causal = with_mask;
  /// Whether there is no key that no row sees.
  static constexpr bool each_key_is_seen = true;

  /// Whether there are rows that do not see the first keys.
  static constexpr bool begins_later = false;
  /// Row i sees the keys from this one on. For a later row it is never less.
  __device__ __forceinline__ int keys_first(const Sizes&, int) const { return 0; }
  /// Row i sees the keys before this one, which are none where it is keys_first. For a later row it is
  /// never less.
  __device__ __forceinline__ int keys_end(const Sizes& n, int i) const { return n.visible_keys(i); }
  /// Key j is seen from this row on: the first i for which it is before keys_end.
  __device__ __forceinline__ int rows_first(const Sizes& n, int j) const {
    return causal && j + n.Nq > n.Nk ? j + n.Nq - n.Nk : 0;
  }
  /// Key j is seen before this row.
  __device__ __forceinline__ int rows_end(const Sizes& n, int) const { return n.Nq; }

  /// What the rest needs to know of a head.
  struct Head {};
  __device__ __forceinline__ Head head(const Sizes&, int /*b*/, int /*h*/) const { return {}; }

  /// Whether score() changes anything.
  static constexpr bool changes_scores = false;
  /// What a score becomes. s has the scale in it.
  __device__ __forceinline__ f32 score(f32 s, const Head&, const Element&) const { return s; }
  /// The derivative of score() where it has returned this.
  __device__ __forceinline__ f32 slope(f32, const Head&, const Element&) const { return 1.f; }

  /// Whether a head has a score of its own, whose exponential is in the sum l of each row.
  static constexpr bool has_sink = false;
  __device__ __forceinline__ f32 sink(const Head&) const { return -INFINITY; }

  /// Whether some P are left out by chance, and which: random bytes for rows i and i + 8 of 16 and eight of
  /// 32 keys (common/attention/philox.hpp), and whether the pair of row i and key j stays. What stays is
  /// multiplied by rescale().
  static constexpr bool drops = false;
  __device__ __forceinline__ Words bytes(const Head&, int /*i*/, int /*j*/) const { return {}; }
  __device__ __forceinline__ bool stays(const Words&, int /*i*/, int /*j*/) const { return true; }
  __device__ __forceinline__ float rescale() const { return 1.f; }
};

}  // namespace
}  // namespace flashladder::stage_70
