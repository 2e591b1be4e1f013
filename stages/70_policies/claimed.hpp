#pragma once
// What claims of variants share, and what one begins with whose kernels are those of stages 70 and 71 for
// some numbers of columns.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_70 {

/// All forms are as before, for the tiles of the kernels that for_masked_row_of<table, widths...> takes.
template <int... widths>
Claim claim_with_columns() {
  Claim claim;
  claim.tile = {.Br = 128, .Bc = 128};
  claim.tile_for = [](const Problem& p) -> ClaimedTile {
    return claim_of(find_stage(70))->symbols(with_columns<widths...>(p));
  };
  claim.backward_tile_for = [](const Problem& p) -> ClaimedTile {
    return claim_of(find_stage(71))->symbols(with_columns<widths...>(p));
  };
  claim.forward.as_before = claim.backward.as_before = true;
  return claim;
}

/// Of each packed sequence as if there were no other.
inline void sum_up(ClosedForm& form) {
  form.count = claims::sum_of_sequences(form.count);
}

/// Tiles of N rows or keys that are launched: with packed sequences one more for each than whole ones.
inline claims::Expr launched(const claims::Expr& N, const claims::Expr& size) {
  using namespace claims;
  const Expr is_packed = min(sequences, 1);
  return named("launched(" + N.text() + ")",
               is_packed * (floor_div(N, size) + sequences) + (1 - is_packed) * ceil_div(N, size));
}

}  // namespace flashladder::stage_70
