// What this stage moves, computes and allocates: what changed since the stage before. Where blocks come in
// clusters, a tile is the cluster's: the rows of all its blocks, and all their warpgroups.
#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"
#include "stages/51_deeper_pipeline/table.hpp"

namespace flashladder::stage_65 {

using namespace claims;

namespace {

/// Blocks of a cluster.
std::int64_t blocks_of_cluster(const Problem& p) {
  const int D = tiles_51::row_for(p.d).d;
  const bool pays = std::min(p.Nq, p.Nk) >= (D == 96 ? 1024 : 129) && (D == 96 || D > 128);
  return pays && p.d % 16 != 0 ? 2 : 1;
}

ClaimedTile tile_for(const Problem& p) {
  const auto& [D, tile] = tiles_51::row_for(p.d);
  const auto warpgroups = static_cast<int>(blocks_of_cluster(p)) * tile.warpgroups;
  return {.Br = 64 * warpgroups,
          .Bc = tile.Bc,
          .R = 4,
          .D = D,
          .warps = 4 * warpgroups,
          .num_buffers = tile.num_buffers,
          .warpgroups = warpgroups,
          .panels = D == 96 ? 3 : D / 64};
}

/// Masked tiles of all blocks of a cluster's row tile. Of block r these are from the first tile that not
/// all rows of its first warpgroup see whole to the last one that its last warpgroup sees.
std::int64_t masked_tiles(const Symbols& n) {
  const std::int64_t blocks = blocks_of_cluster(n.problem);
  ClaimedTile tile = n;
  tile.Br = 64;
  Symbols own(n.problem, tile);
  std::int64_t total = 0;
  for (std::int64_t row_tile = 0; row_tile < n.Tr; ++row_tile) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      std::int64_t live = 0, whole = 0;
      for (std::int64_t w = block; w < n.warpgroups; w += blocks) {
        own.i = row_tile * n.warpgroups + w;
        if (own.i >= own.Tr) continue;
        if (w == block) whole = own.whole();
        live = own.live();
      }
      total += live - whole;
    }
  }
  return n.BH * total;
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 256, .Bc = 112, .R = 4}, .tile_for = tile_for};
  const Expr blocks = {"C", [](const Symbols& n) { return blocks_of_cluster(n.problem); }};
  const Expr boxes = {"boxes", [](const Symbols& n) {  // of Q in a row tile
                        return blocks_of_cluster(n.problem) == 1 ? 1 : n.warpgroups;
                      }};
  const Expr Q_buffers = {
      "Q_buffers", [](const Symbols& n) -> std::int64_t { return tiles_51::row_for(n.D).tile.Q_buffers; }};
  const Expr row_tiles = BH * Tr, clusters = min(multiprocessors() / blocks, row_tiles);
  const Expr draws = {"draws", [=](const Symbols& n) {
                        return row_tiles.value(n) > clusters.value(n) ? row_tiles.value(n) : 0;
                      }};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"blocks", blocks * clusters},
      {"barriers", blocks * clusters},
      {"atomics", draws},
      {"tiles", blocks * BH * sum(live_i)},
      {"masked_tiles", {"those of each block", masked_tiles}},
      {"tma_loads", panels * BH * (boxes * sum(min(live_i, 1)) + 2 * blocks * sum(live_i))},
      {"mbarrier_arrivals", row_tiles * (blocks + 128 * warpgroups) +
                                blocks * BH * sum(live_i) * (2 + 8 * warpgroups) + blocks * clusters +
                                (blocks - 1) * 2 * blocks * draws},
      {"mbarrier_waits", (row_tiles + clusters) * (blocks + 128 * warpgroups) +
                             BH * sum(live_i) * (2 * blocks + 256 * warpgroups) +
                             (blocks - 1) * ((blocks + 1) * draws + 2 * num_buffers * blocks * clusters)},
      {"shared_bytes_per_block",
       2 * (Q_buffers * Br / blocks + 2 * num_buffers * Bc) * D + 32 * num_buffers + 80 + 16 * Q_buffers},
  };
  // Which copies are beside which products is stage 51's matter. Here two producers know different things.
  claim.forward.dropped = {"flops_during_copies", "wgmma_bytes_in_flight"};
  return claim;
}

}  // namespace flashladder::stage_65
