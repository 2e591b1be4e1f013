// What this stage computes, reads and allocates, in the symbols of the problem and its tile.
#include <experimental/simd>

#include "common/claims/cpu_claim.hpp"

namespace flashladder::stage_02 {

using namespace claims;

CpuClaim claim() {
  // Rows of a tile that a number of K meets while it is in a register: C vectors of W.
  constexpr std::int64_t lanes = std::experimental::native_simd<float>::size();
  const Expr W = named("W", lanes), C = named("C", lanes == 16 ? 4 : 2);
  const Expr tiles = BH * Tr;
  CpuClaim claim{.tile = {.Br = 64, .Bc = 60}, .stack_bytes = 16384};
  claim.forward.forms = {
      {"extra_memory", Rule::exact, 4 * threads * Br * (d + Bc + 3)},
#ifdef _OPENMP
      {"writing_threads", Rule::at_least, min(threads, tiles)},
      {"busiest_thread_rows", Rule::at_most, ceil_div(tiles, threads) * Br},
      {"busiest_thread_writes", Rule::at_most, ceil_div(tiles, threads) * Br * d * (Tc + 2), is_price},
      // Room for a counter of tasks, and for nothing that a task does.
      {"locked_accesses", Rule::at_most, 8 * tiles, is_price},
#endif
      // Scores, and P over them; where keys are masked once more; alpha, m and l of each tile; Q
      // transposed.
      {"workspace_writes", Rule::at_most, BH * sum(Br * (if_causal(3, 2) * visible_i + 3 * live_i + d + 2)),
       is_price},
      {"single_operations", Rule::at_most, BH * Nq * (d + 3)},
      {"lane_operations", Rule::at_most,
       BH * sum(visible_i * Br * (4 * d + 27) + live_i * Br * (2 * d + 26)), is_price},
      {"K_reads", Rule::at_most, BH * sum(ceil_div(rows_i, C * W) * visible_i * d)},
      {"allocations", Rule::exact, 0, is_price},
      {"other_memory", Rule::exact, 0, is_price},
  };
  return claim;
}

}  // namespace flashladder::stage_02
