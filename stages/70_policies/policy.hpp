#pragma once
// What the kernels ask of a kind of attention, and the answers of plain attention.
#include "common/kernel/device.hpp"

namespace flashladder::stage_70 {
namespace {

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

  /// Whether score() changes anything.
  static constexpr bool changes_scores = false;
  /// What a score becomes. s has the scale in it.
  __device__ __forceinline__ f32 score(f32 s) const { return s; }
  /// The derivative of score() where it has returned this.
  __device__ __forceinline__ f32 slope(f32) const { return 1.f; }
};

}  // namespace
}  // namespace flashladder::stage_70
