#pragma once
// Backward passes whose blocks stay, and draw one tile of keys after another.
#include <cstdint>
#include <vector>

#include "common/claims/closed_form.hpp"

namespace flashladder::claims {

/// Blocks of a backward pass that stay where d <= 64 and a tile of keys has few tiles of rows. The next K
/// and V come while the last rows of the keys before are multiplied.
struct StayingBlocks {
  std::int64_t multiprocessors;  ///< Each has one block.
  std::int64_t L2_bytes;         ///< For how much of the heads of a section there is room.
  std::int64_t most_row_tiles;   ///< Of a tile of keys in the mean, up to which blocks stay.

  /// How many there are: "blocks".
  Expr blocks() const;
  /// How often they draw a tile of keys.
  Expr drawn() const;
  /// What is so where blocks stay, whatever they add to dQ, and whatever kernels come before and behind.
  std::vector<ClosedForm> forms() const;
  /// A form of a stage whose blocks do not stay becomes "that of the same counter among `staying` if blocks
  /// stay, else as it was". Where there is none it remains.
  void change(ClosedForm& form, const std::vector<ClosedForm>& staying) const;
};

}  // namespace flashladder::claims
