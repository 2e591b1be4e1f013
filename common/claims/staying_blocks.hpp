#pragma once
// Backward passes whose blocks stay, and draw one tile of keys after another.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/claims/closed_form.hpp"

namespace flashladder::claims {

/// Blocks of a backward pass that stay, and what each of them draws: a tile of keys, or a head, whose tiles
/// of keys it takes one after the other. The next K and V come while the last rows of the keys before are
/// multiplied.
struct StayingBlocks {
  std::int64_t multiprocessors;  ///< Each has one block.
  std::int64_t L2_bytes;         ///< For how much of the heads of a section there is room.
  bool whole_heads = false;      ///< Whether they draw heads.

  /// How many there are: "blocks".
  Expr blocks() const;
  /// How often they draw.
  Expr drawn() const;
  /// What is so where blocks stay, whatever they add to dQ, and whatever kernels come before and behind.
  std::vector<ClosedForm> forms() const;
};

/// Whether d <= 64 and a tile of keys has at most so many tiles of rows in the mean.
bool has_few_row_tiles(const Symbols& n, std::int64_t most);

/// A form becomes "that of the same counter among `others` `where`, else as it was", where `holds` says
/// which it is. Where there is none it remains. In the place of what it was the text has `as_before`, if
/// given.
void change_where(ClosedForm& form, const std::vector<ClosedForm>& others, const std::string& where,
                  const std::function<bool(const Symbols&)>& holds, const std::string& as_before = {});

}  // namespace flashladder::claims
