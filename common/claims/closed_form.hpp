#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/attention/stage.hpp"
#include "common/simt/ledger.hpp"

namespace flashladder {

/// The symbols that closed forms are written in.
struct Symbols {
  /// Those of a problem for tiles of Br rows and Bc keys.
  Symbols(const Problem& problem, std::int64_t Br, std::int64_t Bc);

  const Problem& problem;  ///< For the mask.
  std::int64_t BH;         ///< Query heads of all batch entries.
  std::int64_t BHkv;       ///< Key/value heads of all batch entries.
  std::int64_t Nq;         ///< Query rows.
  std::int64_t Nk;         ///< Keys.
  std::int64_t d;          ///< Head dimension.
  std::int64_t Br;         ///< Rows of a tile.
  std::int64_t Bc;         ///< Keys of a tile.
  std::int64_t Tr;         ///< Tiles of rows, ceil(Nq / Br).
  std::int64_t Tc;         ///< Tiles of keys, ceil(Nk / Bc).

  /// Tiles of keys that some row of row tile i sees: live_i.
  std::int64_t live(std::int64_t i) const;
  /// Those of them with a pair, of a real row and any of the Bc keys, that is not visible.
  std::int64_t masked(std::int64_t i) const;
  /// `term(i)` summed over the row tiles.
  template <class Term>
  std::int64_t sum(Term term) const {
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < Tr; ++i) total += term(i);
    return total;
  }
};

/// What a stage's ledger must say, exactly: the stage's claim.
struct ClosedForm {
  std::string_view counter;                 ///< As count_of() takes it.
  std::string_view text;                    ///< In symbols.
  std::int64_t (*value)(const Symbols& n);  ///< The same, computed.
  /// Whether it is right for random numbers only, and other numbers may need more.
  bool least = false;

  /// Whether a ledger with this count is as the form says.
  bool holds(std::int64_t count, const Symbols& n) const {
    return least ? count >= value(n) : count == value(n);
  }
};

/// The tile that closed forms are written for.
struct ClaimedTile {
  std::int64_t Br;  ///< Rows of a tile.
  std::int64_t Bc;  ///< Keys of a tile.
};

/// The closed forms of a stage and the tile that they are written for: stages/NN_name/claim.cpp.
struct Claim {
  std::int64_t Br;                         ///< Rows of a tile, the most where they depend on the problem.
  std::int64_t Bc;                         ///< Keys of a tile, likewise.
  std::span<const ClosedForm> forms = {};  ///< One for each counter of the forward pass that has one.
  ClaimedTile (*tile_for)(const Problem&) = nullptr;  ///< The tile, where it depends on the problem.
  std::span<const ClosedForm> backward_forms = {};    ///< Those of the backward pass.

  /// The symbols of a problem for its tile.
  Symbols symbols(const Problem& problem) const {
    const ClaimedTile tile = tile_for != nullptr ? tile_for(problem) : ClaimedTile{Br, Bc};
    return {problem, tile.Br, tile.Bc};
  }
};

/// The claim of a stage of kernels; nullptr for others.
const Claim* claim_of(const Stage& stage);

/// The count named as in Ledger::entries(), 0 where there is none: "exp", "global.Q.read_bytes". In
/// elements of the buffer where the name ends in "_elements" instead, and of fp32 for shared arrays.
std::int64_t count_of(const simt::Ledger& ledger, std::string_view name);

}  // namespace flashladder
