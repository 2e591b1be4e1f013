// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>

#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_79 {

using namespace claims;

namespace {

/// Numbers of the map that a warp reads on its way from position `first` to `end`: of `blocks` blocks, 32
/// at a time.
std::int64_t read(std::int64_t first, std::int64_t end, std::int64_t blocks) {
  constexpr std::int64_t at_a_time = 32 * BlockMap::size;
  if (first >= end) return 0;
  return std::min((end - 1) / at_a_time * 32 + 32, blocks) - first / at_a_time * 32;
}

/// Forward: of each row tile.
std::int64_t read_forward(const Symbols& n) {
  const Problem& p = n.problem;
  std::int64_t numbers = 0;
  for (std::int64_t i0 = 0; i0 < n.Nq; i0 += n.Br)
    numbers +=
        read(p.mask().keys_first(i0) / n.Bc * n.Bc, p.mask().keys_end(i0 + n.Br - 1), p.block_map.keys);
  return n.BH * numbers;
}

/// Backward: of each tile of keys, for all query heads.
std::int64_t read_backward(const Symbols& n) {
  const Problem& p = n.problem;
  std::int64_t numbers = 0;
  for (std::int64_t j0 = 0; j0 < n.Nk; j0 += n.Bc) {
    const auto first = p.mask().rows(j0).first, end = p.mask().rows(j0 + n.Bc - 1).end;
    numbers += read(first / n.Br * n.Br, end, p.block_map.rows);
  }
  return n.BH * numbers;
}

constexpr bool least = true, random_too = true;  // a maximum comes late: see stage 72

}  // namespace

Claim claim() {
  Claim claim = stage_70::claim_with_columns<64, 128>();
  claim.forward.change = claim.backward.change = over_block_maps;
  claim.forward.forms = {
      {"global.block_map.read_elements", warps * Expr("map_read", read_forward)},
      {"most_exp_before_product", min(live, 1) * Br * (16 + R) / (32 * warps), least, random_too},
  };
  claim.backward.forms = {
      {"global.block_map.read_elements", warps * Expr("map_read", read_backward)},
      {"flops_during_copies", (8 * num_buffers - 6) * Br * Bc * D * (live - seen)},
  };
  return claim;
}

}  // namespace flashladder::stage_79
