// What this stage moves, computes and allocates: what changed since the stage before.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/claims/closed_form.hpp"
#include "common/claims/row_tile_order.hpp"
#include "common/kernel/host.hpp"
#include "stages/51_deeper_pipeline/table.hpp"

namespace flashladder::stage_51 {

using namespace claims;

namespace {

ClaimedTile tile_for(const Problem& p) {
  const auto& [D, tile] = tiles_51::row_for(p.d);
  return {.Br = 64 * tile.warpgroups,
          .Bc = tile.Bc,
          .R = 4,
          .D = D,
          .warps = 4 * tile.warpgroups,
          .num_buffers = tile.num_buffers,
          .warpgroups = tile.warpgroups,
          .panels = D == 96 ? 3 : D / 64};
}

/// A number of the tile.
template <int tiles_51::Tile::*number>
std::int64_t of_tile(const Symbols& n) {
  return tiles_51::row_for(n.D).tile.*number;
}

const Expr Q_buffers = {"Q_buffers", of_tile<&tiles_51::Tile::Q_buffers>};

/// A ring of buffers, as one warpgroup sees it: by tile that comes to a buffer, how many products (a wgmma
/// is one) the warpgroup had begun when it waited for the tile, and how many of them were done when it gave
/// the buffer back.
struct Ring {
  std::vector<std::int64_t> begun, done;
};

/// The products of one warpgroup of a block, in their order.
struct Warpgroup {
  std::array<Ring, 3> rings;        ///< Of K, V and Q.
  std::int64_t begun = 0;           ///< Products.
  std::int64_t done = 0;            ///< Those of them that have been waited for.
  std::int64_t known = 0;           ///< Those that the producer knows to be done.
  std::vector<std::int64_t> flops;  ///< By product; 0 once it is counted.
};

/// What is in flight beside the products of one block: a copy is beside a product unless the producer knew
/// that the product is done when it began the copy, or the warpgroup had waited for the copy before.
class Pipeline {
 public:
  explicit Pipeline(const Symbols& n) : n_(n), warpgroups_(static_cast<std::size_t>(n.warpgroups)) {}

  /// Row tile i of a head comes next: what the warpgroups do.
  void multiply(std::int64_t i) {
    row_tiles_.push_back(i);
    for (std::size_t w = 0; w < warpgroups_.size(); ++w) multiply(warpgroups_[w], i, live_of(i, w));
  }

  /// All row tiles are there: what the producer does.
  void bring() {
    std::int64_t tile = 0;  // of keys
    for (std::int64_t r = 0; r < std::ssize(row_tiles_); ++r) {
      n_.i = row_tiles_[static_cast<std::size_t>(r)];
      const std::int64_t live = n_.live();
      for (std::int64_t j = 0; j < std::max<std::int64_t>(live, 1); ++j) {
        const std::int64_t keys = std::min(n_.Bc, n_.Nk - j * n_.Bc);
        if (live > 0) bring(K, tile, n_.num_buffers, keys);
        if (j == 0) bring(Q, r, Q_buffers.value(n_), live > 0 ? n_.rows() : 0);
        if (live > 0) bring(V, tile++, n_.num_buffers, keys);
      }
    }
  }

  std::int64_t bytes = 0;  ///< In flight, summed over the products of all warps.
  std::int64_t flops = 0;  ///< Of products beside which something is in flight.

 private:
  enum { K, V, Q };

  /// Tiles of keys that some row of a warpgroup sees.
  std::int64_t live_of(std::int64_t i, std::size_t w) const {
    ClaimedTile tile = n_;
    tile.Br = 64;
    Symbols own(n_.problem, tile);
    own.i = i * n_.warpgroups + static_cast<std::int64_t>(w);
    return own.i < own.Tr ? own.live() : 0;
  }

  void multiply(Warpgroup& own, std::int64_t i, std::int64_t live) {
    const auto wait = [&](int of) { own.rings[of].begun.push_back(own.begun); };
    const auto release = [&](int of, std::int64_t done) {
      own.done = done;
      own.rings[of].done.push_back(done);
    };
    const auto begin = [&](std::int64_t products, std::int64_t columns) {
      own.begun += products;
      own.flops.resize(static_cast<std::size_t>(own.begun), 2 * 64 * 16 * columns);
    };
    const std::int64_t of_S = n_.D / 16, of_PV = n_.Bc / 16;
    n_.i = i;
    wait(Q);
    for (std::int64_t j = 0; j < live; ++j) {
      wait(K);
      begin(of_S, n_.Bc);
      if (j == 0) {
        release(K, own.begun);
        continue;
      }
      wait(V);
      begin(of_PV, n_.D);
      release(K, own.begun - of_PV);
      release(V, own.begun);
    }
    release(Q, own.done);
    if (live > 0) {
      wait(V);
      begin(of_PV, n_.D);
      release(V, own.begun);
    }
    for (std::int64_t j = live; j < n_.live(); ++j) {
      for (int of : {K, V}) {
        wait(of);
        release(of, own.done);
      }
    }
  }

  void bring(int of, std::int64_t tile, std::int64_t buffers, std::int64_t rows) {
    for (Warpgroup& own : warpgroups_) {
      const Ring& ring = own.rings[of];
      if (tile >= buffers)
        own.known = std::max(own.known, ring.done[static_cast<std::size_t>(tile - buffers)]);
      if (rows == 0) continue;
      const std::int64_t begun = ring.begun[static_cast<std::size_t>(tile)];
      bytes += std::max<std::int64_t>(begun - own.known, 0) * 4 * 2 * rows * n_.d;
      for (std::int64_t product = own.known; product < begun; ++product)
        flops += std::exchange(own.flops[static_cast<std::size_t>(product)], 0);
    }
  }

  Symbols n_;
  std::vector<std::int64_t> row_tiles_;
  std::vector<Warpgroup> warpgroups_;
};

/// A sum over the blocks: on the emulator they take turns.
std::int64_t over_blocks(const Symbols& n, std::int64_t Pipeline::*what) {
  const std::vector<std::int64_t> order = longest_first(n, L2_bytes() / 3);
  constexpr std::size_t blocks = multiprocessors();
  std::int64_t total = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    Pipeline pipeline(n);
    for (std::size_t next = block; next < order.size(); next += blocks) pipeline.multiply(order[next]);
    pipeline.bring();
    total += pipeline.*what;
  }
  return total;
}

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 256, .Bc = 112, .R = 4}, .tile_for = tile_for};
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"most_registers", {"registers", of_tile<&tiles_51::Tile::registers>}},
      {"fewest_registers", {"producer_registers", of_tile<&tiles_51::Tile::producer_registers>}},
      {"wgmma_bytes_in_flight",
       {"sum over copies and warps of their bytes at the products that nothing keeps apart from them",
        [](const Symbols& n) { return over_blocks(n, &Pipeline::bytes); }}},
      {"flops_during_copies",
       {"those of the products that some copy is not kept apart from",
        [](const Symbols& n) { return over_blocks(n, &Pipeline::flops); }}},
      {"shared_bytes_per_block",
       2 * (Q_buffers * Br + 2 * num_buffers * Bc) * D + 32 * num_buffers + 32 + 16 * Q_buffers},
  };
  return claim;
}

}  // namespace flashladder::stage_51
