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

/// What a block works on: some rows, or keys, of a batch entry; or of one of the sequences that are packed
/// in it.
struct Part {
  int entry;       // its number among all batch entries, or sequences
  int row0, key0;  // where the sequence begins in the rows and keys of its batch entry
  int first;       // the first row, or key, of the block; in the sequence
};

/// Each batch entry is a sequence.
struct Unpacked {
  /// Whether a batch entry holds several sequences, whose tiles begin where they begin.
  static constexpr bool packed = false;
  /// How many tiles of `size` rows, or keys, are enough for N of them.
  FLASHLADDER_HOST_DEVICE constexpr int blocks(std::int64_t N, int size) const {
    return static_cast<int>((N + size - 1) / size);
  }
  /// Whether there are any sequences but batch entries.
  FLASHLADDER_HOST_DEVICE constexpr bool given() const { return false; }
  /// What of batch entry b has row `row` of blocks(Nq, Br) tiles, one after the other. Makes n the sizes of
  /// the sequence. A row that there is not is none of n.Nq.
  __device__ __forceinline__ Part of_row(Sizes&, int b, int row, int /*Br*/) const {
    return {b, 0, 0, row};
  }
  /// The same for key `key` of blocks(Nk, Bc) tiles.
  __device__ __forceinline__ Part of_key(Sizes&, int b, int key, int /*Bc*/) const {
    return {b, 0, 0, key};
  }
  /// Where the rows of a part begin among those of blocks(Nq, Br) tiles.
  __device__ __forceinline__ int padded_row0(const Part&, int /*Br*/) const { return 0; }
};

/// Rows, and keys, of a block that a policy may skip: a multiple of what any tile has.
constexpr int skipped_block = 128;

/// Every tile between the first and the last that are seen has a row that sees some key of it.
struct EveryTile {
  /// The next one that has, from position x on, which is where a tile begins; `end` where there is none
  /// before it.
  __device__ __forceinline__ int next(int x, int /*end*/) const { return x; }
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

  /// Where sequences lie.
  using Sequences = Unpacked;
  FLASHLADDER_HOST_DEVICE constexpr Sequences sequences() const { return {}; }

  /// What the rest needs to know of a head.
  struct Head {};
  __device__ __forceinline__ Head head(const Sizes&, int /*b*/, int /*h*/) const { return {}; }

  /// Whether some tiles are skipped, and which are next(): of keys, for the rows from i on; backward of
  /// rows, for the keys from j on.
  static constexpr bool skips_tiles = false;
  using LiveTiles = EveryTile;
  __device__ __forceinline__ LiveTiles live_keys(const Head&, int /*i*/) const { return {}; }
  __device__ __forceinline__ LiveTiles live_rows(const Head&, int /*j*/) const { return {}; }

  /// Whether score() changes anything.
  static constexpr bool changes_scores = false;
  /// What a score becomes. s has the scale in it.
  __device__ __forceinline__ f32 score(f32 s, const Head&, const Element&) const { return s; }
  /// The derivative of score() where it has returned this.
  __device__ __forceinline__ f32 slope(f32, const Head&, const Element&) const { return 1.f; }
  /// Whether numbers are added to the scores, before score(). S begins with over_scale() of them, since its
  /// sums are multiplied with the scale: all of a thread's numbers are on the way together, and have no
  /// registers but those of S.
  static constexpr bool has_bias = false;
  /// Whether there are any.
  __device__ __forceinline__ bool has_numbers() const { return false; }
  /// Whether an element of a tile has a number; then those of a thread that come before it have one, too.
  __device__ __forceinline__ bool has_number(const Head&, const Element&) const { return false; }
  __device__ __forceinline__ f32 number(const Head&, const Element&) const { return 0.f; }
  __device__ __forceinline__ f32 over_scale(f32 number) const { return number; }
  /// Whether the numbers of a key and of the next one may be read in one access; and these two numbers.
  __device__ __forceinline__ bool has_pairs() const { return false; }
  __device__ __forceinline__ float2 pair(const Head&, const Element&) const { return {}; }
  /// Is given dS, the gradient of the sum of score and number, of an element that has a number.
  __device__ __forceinline__ void take_gradient(f32, const Head&, const Element&) const {}

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

/// What scores are compared with: m. In plain attention a row has a key in its first tile, or none at all,
/// and m is finite from there on. Where a row may begin later, m stays -infinity until then: a maximum far
/// below 0 would not be above an m that is 0.
template <class Policy>
__device__ __forceinline__ f32 subtracted(f32 m) {
  return Policy::begins_later ? finite(m) : m;
}

}  // namespace
}  // namespace flashladder::stage_70
