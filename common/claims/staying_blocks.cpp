#include "common/claims/staying_blocks.hpp"

#include <algorithm>

#include "common/claims/first_tiles.hpp"
#include "common/claims/key_tile_order.hpp"
#include "common/claims/row_tile_order.hpp"

namespace flashladder::claims {

namespace {

/// A tile of rows, as TMA brings it.
struct RowTile {
  std::int64_t bytes;  ///< Of Q and L2, or of dO and D; with the first one of new keys of K, or of V.
  /// Whether it has to wait for the place of K and V: behind keys with a single tile of rows, whose first
  /// tile, in which the keys before them are used for the last time, is the tile before.
  bool late;
  bool alone;  ///< Whether it is the only tile of rows of its keys, and they are not the first ones.
};
using RowTiles = std::vector<RowTile>;

/// Those of all blocks, which take turns on the emulator.
std::vector<RowTiles> tiles_of_blocks(const StayingBlocks& blocks, const Symbols& n) {
  // Head after head where blocks draw heads: as if L2 had room for none.
  const std::vector<std::int64_t> order = key_tiles_in_order(n, blocks.whole_heads ? 0 : blocks.L2_bytes);
  const auto together = static_cast<std::size_t>(blocks.whole_heads ? n.Tc : 1);  // tiles drawn at a time
  const std::size_t count = std::min<std::size_t>(blocks.multiprocessors, order.size() / together);
  std::vector<RowTiles> tiles(count);
  std::vector<std::size_t> rows_before(count);  // tiles of rows of the keys before
  for (std::size_t number = 0; number < order.size(); ++number) {
    const std::size_t block = number / together % count,
                      turn = number / together / count * together + number % together;
    const std::int64_t j0 = order[number] * n.Bc;
    RowTile next{2 * std::min(n.Bc, n.Nk - j0) * n.d, turn >= 2 && rows_before[block] == 1, false};
    const std::size_t before = tiles[block].size();
    for (std::int64_t head = 0; head < n.BH / n.BHkv; ++head) {
      for (std::int64_t i = first_row_tile(n, j0); i < n.Tr; ++i, next = {}) {
        next.bytes += 2 * std::min(n.Br, n.Nq - i * n.Br) * n.d + 4 * n.Br;
        tiles[block].push_back(next);
      }
    }
    rows_before[block] = tiles[block].size() - before;
    tiles[block].back().alone = turn > 0 && rows_before[block] == 1;
  }
  return tiles;
}

}  // namespace

Expr StayingBlocks::blocks() const {
  return named("blocks", min(multiprocessors, whole_heads ? BHkv : BHkv * Tc));
}

Expr StayingBlocks::drawn() const {
  return claims::drawn(whole_heads ? BHkv : BHkv * Tc, multiprocessors);
}

std::vector<ClosedForm> StayingBlocks::forms() const {
  // The sum over all blocks of what `of_block` says of one.
  const auto sum_of_blocks = [*this](const char* name, std::int64_t (*of_block)(const RowTiles&)) {
    return Expr(name, [*this, of_block](const Symbols& n) {
      std::int64_t sum = 0;
      for (const RowTiles& tiles : tiles_of_blocks(*this, n)) sum += of_block(tiles);
      return sum;
    });
  };
  // Bytes of Q, L2 and K, or of dO, D and V: of the first and of the second tile of all blocks, and of
  // those that are late.
  const Expr first = sum_of_blocks("first", [](const RowTiles& tiles) { return tiles[0].bytes; });
  const Expr second =
      sum_of_blocks("second", [](const RowTiles& tiles) { return tiles.size() > 1 ? tiles[1].bytes : 0; });
  const Expr late_bytes = sum_of_blocks("late_bytes", [](const RowTiles& tiles) {
    std::int64_t bytes = 0;
    for (const RowTile& tile : tiles) bytes += tile.late ? tile.bytes : 0;
    return bytes;
  });
  // How many are late.
  const Expr late = sum_of_blocks("late", [](const RowTiles& tiles) {
    return std::int64_t{std::ranges::count_if(tiles, &RowTile::late)};
  });
  // Blocks that have more than one tile.
  const Expr several =
      sum_of_blocks("several", [](const RowTiles& tiles) { return std::int64_t{tiles.size() > 1}; });
  // Blocks whose last tile is alone: they are told that none is left when they have begun its dK.
  const Expr told_late =
      sum_of_blocks("told_late", [](const RowTiles& tiles) { return std::int64_t{tiles.back().alone}; });
  const Expr blocks = this->blocks(), tiles = BH * sum(live_i);
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * tiles * Br + 2 * BHkv * Nk * d);
  return {
      {"barriers", blocks},
      {"named_barriers", 0},
      {"copying_threads", blocks},
      // A tile of keys gives its place back in the next one: not the last one of a block. And all are told
      // that none is left.
      {"mbarrier_arrivals", tiles * (2 + 16 * warpgroups) + (BHkv * Tc - blocks) * 4 * warpgroups + blocks},
      {"mbarrier_waits",
       tiles * (2 + 512 * warpgroups) + BHkv * Tc + 2 * blocks + 128 * warpgroups * (BHkv * Tc + blocks)},
      {"shared_bytes_per_block",
       4 * num_buffers * (Bc + Br) * D + 2 * num_buffers * Br * Bc + 8 * num_buffers * (Br + 9)},
      // dK and dV do not go through shared memory.
      {"shared.K.read_bytes", 2 * (1 + Br / 64) * tiles * Bc * D},
      {"shared.V.read_bytes", 2 * tiles * Bc * D},
      // As before, but of what a block has in all. A late tile is beside dK of the tile before alone.
      {"wgmma_bytes_in_flight",
       warps * ((D + Br) / 4 * (all - first) + D / 16 * all + Bc / 8 * (all - first - second) -
                (2 * D + Br + Bc) / 8 * late_bytes)},
      {"flops_during_copies", Br * Bc * D * (10 * tiles - 8 * blocks - 2 * several - 6 * late)},
      {"unordered_wgmmas",
       ((tiles - blocks) * (2 * D + 2 * Br + Bc) * (6 * D + 4 * Br + Bc) +
        blocks * (4 * (D + Br) * (D + Br) + Bc * (Bc + 2 * Br)) +
        2 * several * (Br * Br + Bc * Bc - 2 * D * Bc) - 2 * late * (2 * D + Br) * (2 * D + 2 * Br + Bc) -
        2 * told_late * Bc * (Br + Bc)) /
           256},
  };
}

bool has_few_row_tiles(const Symbols& n, std::int64_t most) {
  const Expr row_tiles = BH * sum(live_i), key_tiles = BHkv * Tc;
  return n.d <= 64 && row_tiles.value(n) <= most * key_tiles.value(n);
}

void change_where(ClosedForm& form, const std::vector<ClosedForm>& others, const std::string& where,
                  const std::function<bool(const Symbols&)>& holds, const std::string& as_before) {
  const auto found = std::ranges::find(others, form.counter, &ClosedForm::counter);
  if (found == others.end()) return;
  const Expr a = found->count, b = form.count;
  form.count = {
      a.text() + " " + where + ", else " + (as_before.empty() ? b.text_within(Expr::Bond::sum) : as_before),
      [=](const Symbols& n) { return (holds(n) ? a : b).value(n); }, Expr::Bond::choice};
}

}  // namespace flashladder::claims
