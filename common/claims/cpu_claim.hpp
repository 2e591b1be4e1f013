#pragma once
#include <cstdint>
#include <string_view>

#include "common/claims/expression.hpp"
#include "common/claims/forms.hpp"

namespace flashladder {

struct Stage;

/// How a count may differ from what the claim says.
enum class Rule {
  exact,     ///< Not at all.
  at_most,   ///< It may be smaller: the code is cheaper than the reference.
  near,      ///< As at_most, or larger by a quarter: there is more than one way to write it.
  at_least,  ///< It may be larger.
};

/// A count of a CPU stage.
struct CpuForm {
  std::string_view counter;  ///< Such as "score_reads"; common/labs/claim.cpp says what it counts.
  Rule rule;                 ///< How a count may differ.
  claims::Expr count;        ///< What it is.
  bool price = false;        ///< What the idea may cost: it is no part of the idea.
};

/// For CpuForm::price.
inline constexpr bool is_price = true;

/// What a CPU stage claims of its forward pass: stages/NN_name/claim.cpp.
struct CpuClaim {
  ClaimedTile tile = {};                              ///< What is computed at a time.
  Forms<CpuForm> forward = {};                        ///< Its counts.
  ClaimedTile (*tile_for)(const Problem&) = nullptr;  ///< The tile, where it depends on the problem.
  std::int64_t stack_bytes = 1024;  ///< Of the stack, for single variables: beyond them it is other memory.

  /// The symbols of a problem, computed by so many threads.
  Symbols symbols(const Problem& problem, std::int64_t threads) const {
    Symbols n(problem, tile_for != nullptr ? tile_for(problem) : tile);
    n.threads = threads;
    return n;
  }
};

/// The claim of a CPU stage, with all that it has from the stages before; nullptr for others.
const CpuClaim* cpu_claim_of(const Stage& stage);

/// The claim as the stage's claim.cpp says it. Only for CPU stages.
CpuClaim own_cpu_claim(const Stage& stage);

}  // namespace flashladder
