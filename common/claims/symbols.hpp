#pragma once
#include <cstdint>

#include "common/attention/problem.hpp"

namespace flashladder {

/// What a block of a stage works on, as far as closed forms speak of it.
struct ClaimedTile {
  std::int64_t Br = 1;           ///< Rows of a tile.
  std::int64_t Bc = 1;           ///< Keys of a tile.
  std::int64_t R = 1;            ///< Threads that hold a row of S and O.
  std::int64_t D = 0;            ///< Columns of a tile: d, and the zeros that follow it; 0: d alone.
  std::int64_t warps = 1;        ///< Of a block.
  std::int64_t share = 1;        ///< Warps that share the same keys.
  std::int64_t num_buffers = 1;  ///< Buffers of each tile that is copied while the one before is in use.
  std::int64_t step = 1;         ///< Rows of a tile that a warp takes at a time.
  std::int64_t warpgroups = 0;   ///< Of a block, that multiply.
  std::int64_t panels = 1;       ///< Of a tile: what TMA copies at a time.

  bool operator==(const ClaimedTile&) const = default;  ///< Equal in each number.
};

/// The numbers that a closed form is evaluated with: those of a problem, and of a tile.
struct Symbols : ClaimedTile {
  /// Those of a problem in tiles of this kind.
  Symbols(const Problem& problem, const ClaimedTile& tile);

  const Problem& problem;    ///< For the mask.
  std::int64_t BH;           ///< Query heads of all batch entries.
  std::int64_t BHkv;         ///< Key/value heads of all batch entries.
  std::int64_t Nq;           ///< Query rows.
  std::int64_t Nk;           ///< Keys.
  std::int64_t d;            ///< Head dimension.
  std::int64_t Tr;           ///< Tiles of rows, ceil(Nq / Br).
  std::int64_t Tc;           ///< Tiles of keys, ceil(Nk / Bc).
  std::int64_t threads = 1;  ///< Of a CPU stage.
  std::int64_t i = 0;        ///< The row tile that live_i and its like are of.

  /// Pairs of a query and a key that it sees, in one head.
  std::int64_t pairs() const { return problem.visible_pairs(); }
  /// Rows of row tile i: Br, but in the last.
  std::int64_t rows() const;
  /// Keys that some row of row tile i sees, from the first that its first row sees to its last row's last.
  std::int64_t visible() const;
  /// Tiles of keys that some row of row tile i sees, live_i. A block map, here and below, must be one for
  /// all heads.
  std::int64_t live() const;
  /// Keys of those tiles, keys_i.
  std::int64_t keys() const;
  /// Tiles of keys that each row of row tile i sees in full, whole_i.
  std::int64_t whole() const;

  /// Tiles of keys with a row that sees one of them, of all key/value heads, each of all its query heads.
  std::int64_t seen_tiles() const { return seen(false); }
  /// Keys of those tiles.
  std::int64_t seen_keys() const { return seen(true); }

 private:
  template <class F>
  void for_live(F f) const;
  std::int64_t seen(bool keys) const;
};

}  // namespace flashladder
