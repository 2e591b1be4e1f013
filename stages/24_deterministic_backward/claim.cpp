// What this stage moves, computes and allocates, in the symbols of the problem alone. live_i is the number
// of tiles of keys that some row of row tile i sees, rows_i the number of its rows: Br, but in the last
// tile. `splits` splits divide the tiles of keys; parts_i = min(live_i, splits) of them add to row tile i,
// and parts_f to the tile that fragment f of 16 rows is in.
#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "stages/24_deterministic_backward/table.hpp"

namespace flashladder::stage_24 {
namespace {

using namespace tiles_24;

/// What the emulator runs; fp32 inputs are rounded to fp16 for it.
const Tile& tile(const Problem& p) {
  return row_for(table, 90, p.dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp16, p.d, p.causal).tile;
}
/// Warps that share the same keys: 1 or 2.
std::int64_t share(const Symbols& n) {
  return tile(n.problem).share;
}
/// Buffers of Q and of dO.
std::int64_t stages(const Symbols& n) {
  return tile(n.problem).stages;
}
/// Groups of warps that have keys of their own.
std::int64_t groups(const Symbols& n) {
  return tile(n.problem).warps / share(n);
}
/// Column blocks that a tile of dQ is shared out in.
std::int64_t blocks(const Symbols& n) {
  const std::int64_t warps = tile(n.problem).warps;
  std::int64_t best = 0;
  for (std::int64_t blocks = 1; blocks <= warps; blocks *= 2) {
    if (n.d % (16 * blocks) != 0 || n.Br * blocks % (16 * warps) != 0) continue;
    if (best == 0 || blocks * n.Br + warps / blocks * n.d < best * n.Br + warps / best * n.d) best = blocks;
  }
  return best;
}
/// How often a warp goes through its keys of K, and of V, for a tile.
std::int64_t chunks(const Symbols& n) {
  return n.Br / tile(n.problem).step;
}
/// Lanes that compute D of a row.
std::int64_t lanes(const Symbols& n) {
  return n.d % 64 == 0 ? 8 : 4;
}
/// sum(live_i): the tiles of scores of a head.
std::int64_t live(const Symbols& n) {
  return n.sum([&](std::int64_t i) { return n.live(i); });
}
/// sum(live_i rows_i): the rows of those tiles.
std::int64_t live_rows(const Symbols& n) {
  return n.sum([&](std::int64_t i) { return n.live(i) * std::min(n.Br, n.Nq - i * n.Br); });
}
/// ceil(Nq / 16): the fragments of rows.
std::int64_t T16(const Symbols& n) {
  return (n.Nq + 15) / 16;
}

/// 256 blocks or more, at least two tiles for each where there are, and as many for each.
std::int64_t splits(const Symbols& n) {
  const std::int64_t most = std::min((256 + n.BHkv - 1) / n.BHkv, (n.Tc + 1) / 2);
  const std::int64_t each = (n.Tc + most - 1) / most;
  return (n.Tc + each - 1) / each;
}
/// The splits that write to dQ of row tile i: sum(min(live_i, splits)) over all.
std::int64_t first_live(const Symbols& n) {
  return n.sum([&](std::int64_t i) { return std::min(n.live(i), splits(n)); });
}
/// Of row fragment f of 16, the splits that are summed.
std::int64_t summed(const Symbols& n) {
  std::int64_t total = 0;
  for (std::int64_t f = 0; f < T16(n); ++f) total += std::min(n.live(16 * f / n.Br), splits(n));
  return total;
}

constexpr ClosedForm backward_forms[] = {
    {"global.Q.read_elements", "BH sum(live_i rows_i) d",
     [](const Symbols& n) { return n.BH * live_rows(n) * n.d; }},
    {"global.K.read_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.V.read_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.O.read_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dO.read_elements", "BH (sum(live_i rows_i) + Nq) d",
     [](const Symbols& n) { return n.BH * (live_rows(n) + n.Nq) * n.d; }},
    {"global.L.read_elements", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"global.L2.written_elements", "BH Tr Br", [](const Symbols& n) { return n.BH * n.Tr * n.Br; }},
    {"global.L2.read_elements", "BH sum(live_i) Br",
     [](const Symbols& n) { return n.BH * live(n) * n.Br; }},
    {"global.D.written_elements", "BH Tr Br", [](const Symbols& n) { return n.BH * n.Tr * n.Br; }},
    {"global.D.read_elements", "BH sum(live_i) Br", [](const Symbols& n) { return n.BH * live(n) * n.Br; }},
    {"global.dQ_split.written_elements", "BH sum(live_i) Br d",
     [](const Symbols& n) { return n.BH * live(n) * n.Br * n.d; }},
    {"global.dQ_split.read_elements", "BH (sum(live_i - parts_i) Br + 16 sum(parts_f)) d",
     [](const Symbols& n) { return n.BH * ((live(n) - first_live(n)) * n.Br + 16 * summed(n)) * n.d; }},
    {"global.dQ_split.atomic_elements", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"global.dQ.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dK.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.dV.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"device_bytes", "4 BH Tr Br (2 + splits d)",
     [](const Symbols& n) { return 4 * n.BH * n.Tr * n.Br * (2 + splits(n) * n.d); }},
    {"blocks", "BHkv splits + BH (Tr Br lanes / 128 + ceil(ceil(Nq / 16) d / 128))",
     [](const Symbols& n) {
       return n.BHkv * splits(n) + n.BH * (n.Tr * n.Br * lanes(n) / 128 + (T16(n) * n.d + 127) / 128);
     }},
    {"tiles", "BH sum(live_i)", [](const Symbols& n) { return n.BH * live(n); }},
    {"masked_tiles", "BH sum(live_i - whole_i)",
     [](const Symbols& n) { return n.BH * n.sum([&](std::int64_t i) { return n.masked(i); }); }},
    {"flops_tensor_cores", "10 Br Bc d BH sum(live_i)",
     [](const Symbols& n) { return 10 * n.Br * n.Bc * n.d * n.BH * live(n); }},
    {"flops_cuda_cores", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"flops_during_copies", "(8 stages - 6) Br Bc d (BH sum(live_i) - BHkv Tc)",
     [](const Symbols& n) {
       return (8 * stages(n) - 6) * n.Br * n.Bc * n.d * (n.BH * live(n) - n.BHkv * n.Tc);
     }},
    {"exp", "BH sum(live_i) Br Bc", [](const Symbols& n) { return n.BH * live(n) * n.Br * n.Bc; }},
    {"div", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"mul", "2 BH sum(live_i) Br Bc + BH (Nq (1 + d) + 16 ceil(Nq / 16) d) + BHkv Tc Bc d",
     [](const Symbols& n) {
       return 2 * n.BH * live(n) * n.Br * n.Bc + n.BH * (n.Nq * (1 + n.d) + 16 * T16(n) * n.d) +
              n.BHkv * n.Tc * n.Bc * n.d;
     }},
    {"barriers", "2 BH sum(live_i) + BHkv (2 Tc - splits)",
     [](const Symbols& n) { return 2 * n.BH * live(n) + n.BHkv * (2 * n.Tc - splits(n)); }},
    {"atomics", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.P.read_bytes", "4 (share - 1) BH sum(live_i) Br Bc",
     [](const Symbols& n) { return 4 * (share(n) - 1) * n.BH * live(n) * n.Br * n.Bc; }},
    {"shared.dS.written_bytes", "2 BH sum(live_i) Br Bc",
     [](const Symbols& n) { return 2 * n.BH * live(n) * n.Br * n.Bc; }},
    {"shared.dS.read_bytes", "2 blocks BH sum(live_i) Br Bc",
     [](const Symbols& n) { return 2 * blocks(n) * n.BH * live(n) * n.Br * n.Bc; }},
    {"shared.Q.read_bytes", "2 * 2 groups BH sum(live_i) Br d",
     [](const Symbols& n) { return 2 * 2 * groups(n) * n.BH * live(n) * n.Br * n.d; }},
    {"shared.dO.read_bytes", "2 * 2 groups BH sum(live_i) Br d",
     [](const Symbols& n) { return 2 * 2 * groups(n) * n.BH * live(n) * n.Br * n.d; }},
    {"shared.K.read_bytes", "2 ((Br / step + warps / blocks) BH sum(live_i) + BHkv Tc) Bc d",
     [](const Symbols& n) {
       const std::int64_t of_a_tile = chunks(n) + groups(n) * share(n) / blocks(n);
       return 2 * (of_a_tile * n.BH * live(n) + n.BHkv * n.Tc) * n.Bc * n.d;  // the last is dK
     }},
    {"shared.V.read_bytes", "2 (Br / step BH sum(live_i) + BHkv Tc) Bc d",
     [](const Symbols& n) {
       return 2 * (chunks(n) * n.BH * live(n) + n.BHkv * n.Tc) * n.Bc * n.d;  // the last is dV
     }},
};

ClaimedTile tile_for(const Problem& p) {
  return {tile(p).Br, tile(p).Bc};
}

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 64, .Bc = 128, .tile_for = tile_for, .backward_forms = backward_forms};

}  // namespace flashladder::stage_24
