#pragma once
// Kernels include this too: no header of the host.

#include "common/attention/host_device.hpp"

namespace flashladder {

/// The numbers first, first + 1, ... end - 1; none where end <= first.
template <class Int>
struct Interval {
  Int first;  ///< The first of them.
  Int end;    ///< One more than the last.

  /// How many.
  FLASHLADDER_HOST_DEVICE constexpr Int size() const { return end > first ? end - first : 0; }
};

/// Which rows see which keys. Row i sees an interval of keys, which begins and ends no earlier than that of
/// the row before it: all else follows from that.
///
/// Row i's own key is i + Nk - Nq: rows and keys are aligned at the bottom right.
template <class Int>
struct Mask {
  Int Nq;          ///< Query rows.
  Int Nk;          ///< Keys.
  bool causal;     ///< A row sees no key behind its own.
  Int left = -1;   ///< A row sees so many keys before its own; -1: all.
  Int right = -1;  ///< A row sees so many keys behind its own, under the causal mask none; -1: all.
  Int prefix = 0;  ///< Every row sees the first so many keys, at most Nk; where it sees all before its own.

  /// The first key that row i sees, where it sees one. Kernels ask for it, and for keys_end(), by itself:
  /// of an interval whose other end is not used, nvcc 13.0 leaves a few instructions.
  FLASHLADDER_HOST_DEVICE constexpr Int keys_first(Int i) const {
    const Int first = left < 0 ? 0 : i + Nk - Nq - left;
    return first < 0 ? 0 : first;
  }

  /// One more than the last key that row i sees.
  FLASHLADDER_HOST_DEVICE constexpr Int keys_end(Int i) const {
    const Int behind = causal ? 0 : right;
    if (behind < 0) return Nk;
    const Int end = i + 1 + Nk - Nq + behind;
    return end < prefix ? prefix : end < Nk ? end : Nk;
  }

  /// The keys that row i sees.
  FLASHLADDER_HOST_DEVICE constexpr Interval<Int> keys(Int i) const { return {keys_first(i), keys_end(i)}; }

  /// The rows that see key j.
  FLASHLADDER_HOST_DEVICE constexpr Interval<Int> rows(Int j) const {
    const Int behind = causal ? 0 : right, own = j + Nq - Nk;
    const Int first = behind < 0 || j < prefix ? 0 : own - behind, end = left < 0 ? Nq : own + left + 1;
    return {first < 0 ? 0 : first < Nq ? first : Nq, end < 0 ? 0 : end < Nq ? end : Nq};
  }

  /// The tiles of Bc keys that are live for rows i0 ... i0 + Br - 1: some row sees some key of them.
  FLASHLADDER_HOST_DEVICE constexpr Interval<Int> live_tiles(Int i0, Int Br, Int Bc) const {
    return {keys(i0).first / Bc, (keys(i0 + Br - 1).end + Bc - 1) / Bc};
  }

  /// Those of them that are whole: each row sees all their keys, so that they need no mask.
  FLASHLADDER_HOST_DEVICE constexpr Interval<Int> whole_tiles(Int i0, Int Br, Int Bc) const {
    return {(keys(i0 + Br - 1).first + Bc - 1) / Bc, keys(i0).end / Bc};
  }
};

}  // namespace flashladder
