#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "common/attention/tensor.hpp"
#include "common/claims/expression.hpp"
#include "common/claims/forms.hpp"
#include "common/simt/ledger.hpp"

namespace flashladder {

struct Stage;

/// What a stage's ledger must say, exactly.
struct ClosedForm {
  std::string_view counter;  ///< As count_of() takes it.
  claims::Expr count;        ///< What it is.
  /// Whether it is right for random numbers only, and other numbers may need more.
  bool least = false;
  /// With `least`: whether random numbers may need more, too. Exactly so much need numbers that are as kind
  /// as they can be: steady_inputs() of check/inputs.hpp.
  bool random_too = false;

  /// In symbols.
  const std::string& text() const { return count.text(); }
  /// For a problem and a tile.
  std::int64_t value(const Symbols& n) const { return count.value(n); }
  /// Whether a ledger with this count is as the form says.
  bool holds(std::int64_t counted, const Symbols& n) const {
    return least ? counted >= value(n) : counted == value(n);
  }
  /// The same where the numbers are random.
  bool holds_for_random(std::int64_t counted, const Symbols& n) const {
    return random_too ? counted >= value(n) : counted == value(n);
  }
};

/// What becomes of a form where heads have block maps of their own: of_each_head; but one with `seen` in it
/// tells of all heads anyway.
inline void over_block_maps(ClosedForm& form) {
  if (form.text().find("seen") == std::string::npos) form.count = claims::of_each_head(form.count);
}

/// What a stage of kernels claims: stages/NN_name/claim.cpp.
struct Claim {
  /// What a block works on, the most where it depends on the problem. Where neither this nor tile_for is
  /// given and the forward forms are as before, so is the tile.
  ClaimedTile tile = {};
  Forms<ClosedForm> forward = {};                     ///< Counts of the forward pass.
  Forms<ClosedForm> backward = {};                    ///< Counts of the backward pass.
  ClaimedTile (*tile_for)(const Problem&) = nullptr;  ///< The tile, where it depends on the problem.
  /// That of the backward pass, where a stage with both passes has another one for it.
  ClaimedTile (*backward_tile_for)(const Problem&) = nullptr;
  /// Whether the forward pass writes O in whole sectors: no instruction touches more than its bytes fill.
  /// (A ledger counts sectors with Options::banks only, so that this is no closed form.)
  bool whole_sectors_of_O = false;
  /// Whether what blocks of the backward pass add to dQ atomically has the same sums every time: integers,
  /// whose sums are exact in any order, or numbers of one block for each row, in its order.
  bool same_sums = false;

  /// Those of a pass.
  const Forms<ClosedForm>& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  /// The symbols of a problem for its tile.
  Symbols symbols(const Problem& problem, Pass pass = Pass::forward) const {
    if (pass == Pass::backward && backward_tile_for != nullptr)
      return {problem, backward_tile_for(problem)};
    return {problem, tile_for != nullptr ? tile_for(problem) : tile};
  }
};

/// The claim of a stage of kernels, with all that it has from the stages before; nullptr for others. What
/// comes from another stage is for this one's tile: the forms have symbols for what a tile has.
const Claim* claim_of(const Stage& stage);

/// Whether blocks of a backward pass add to what other blocks have added, as its claim says, in whatever
/// order they come, and not in integers: then dQ may have other bits each time. No stage on a CPU does.
bool adds_in_any_order(const Stage& stage, const Problem& problem);

/// The claim as the stage's claim.cpp says it. Only for stages of kernels.
Claim own_claim(const Stage& stage);

/// The count named as in Ledger::entries(), 0 where there is none: "exp", "global.Q.read_bytes". In
/// elements of the buffer where the name ends in "_elements" instead, and of fp32 for shared arrays.
std::int64_t count_of(const simt::Ledger& ledger, std::string_view name);

}  // namespace flashladder
