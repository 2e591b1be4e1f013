// What this stage moves, computes and allocates, in the symbols of the problem alone.
#include <algorithm>

#include "common/claims/closed_form.hpp"
#include "stages/19_tuned/table.hpp"

namespace flashladder::stage_19 {
namespace {

using namespace tiles_19;

constexpr std::int64_t R = 4;  // the lanes that hold a row of S and O

/// What the emulator runs; fp32 inputs are rounded to fp16 for it.
const Row& row(const Problem& p) {
  return row_for(table, 90, p.dtype == Dtype::bf16 ? Dtype::bf16 : Dtype::fp16, p.d, p.causal);
}

/// Columns of a tile: d, and the zeros that follow it.
std::int64_t D(const Symbols& n) {
  return row(n.problem).d;
}

/// Warps of a block, each of which reads all of a tile of K and V.
std::int64_t warps(const Symbols& n) {
  return row(n.problem).tile.warps;
}

/// Buffers of K and of V.
std::int64_t stages(const Symbols& n) {
  return row(n.problem).tile.stages;
}

/// Blocks of a head that see a key. Each of their rows gets its m in its first tile, and keeps it where no
/// later score is larger by a factor of 2^8 after the exponential, as with random numbers. Each time that a
/// row does not, it takes R more exponentials and D + R more multiplications.
std::int64_t live_blocks(const Symbols& n) {
  return n.sum([&](auto i) { return n.live(i) > 0 ? 1 : 0; });
}

constexpr ClosedForm forms[] = {
    {"global.Q.read_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.K.read_elements", "BH sum(min(live_i Bc, Nk)) d",
     [](const Symbols& n) {
       return n.BH * n.sum([&](auto i) { return std::min(n.live(i) * n.Bc, n.Nk); }) * n.d;
     }},
    {"global.V.read_elements", "BH sum(min(live_i Bc, Nk)) d",
     [](const Symbols& n) {
       return n.BH * n.sum([&](auto i) { return std::min(n.live(i) * n.Bc, n.Nk); }) * n.d;
     }},
    {"global.O.read_elements", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"global.O.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.L.written_elements", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"device_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"blocks", "BH Tr", [](const Symbols& n) { return n.BH * n.Tr; }},
    {"tiles", "BH sum(live_i)",
     [](const Symbols& n) { return n.BH * n.sum([&](auto i) { return n.live(i); }); }},
    {"masked_tiles", "BH sum(live_i - whole_i)",
     [](const Symbols& n) { return n.BH * n.sum([&](auto i) { return n.masked(i); }); }},
    {"flops_tensor_cores", "4 Br Bc D BH sum(live_i)",
     [](const Symbols& n) {
       return 4 * n.Br * n.Bc * D(n) * n.BH * n.sum([&](auto i) { return n.live(i); });
     }},
    {"flops_cuda_cores", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"exp", "BH Br (sum(live_i) Bc + R live blocks)",
     [](const Symbols& n) {
       return n.BH * n.Br * (n.sum([&](auto i) { return n.live(i); }) * n.Bc + R * live_blocks(n));
     },
     true},  // at least: other numbers may need more
    {"div", "BH Tr Br R", [](const Symbols& n) { return n.BH * n.Tr * n.Br * R; }},
    {"mul", "BH Br (sum(live_i) (Bc + R) + (D + R) live blocks + Tr D) + BH Nq",
     [](const Symbols& n) {
       const std::int64_t live = n.sum([&](auto i) { return n.live(i); });
       return n.BH * n.Br * (live * (n.Bc + R) + (D(n) + R) * live_blocks(n) + n.Tr * D(n)) + n.BH * n.Nq;
     },
     true},  // at least: other numbers may need more
    {"log", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"barriers", "BH sum(max((3 - stages) live_i, 1) + [scale < 0])",
     [](const Symbols& n) {
       return n.BH * n.sum([&](auto i) {
         return std::max<std::int64_t>((3 - stages(n)) * n.live(i), 1) + (n.problem.scale < 0);
       });
     }},
    {"flops_during_copies", "2 Br Bc D BH sum(2 live_i - stages) over live_i > 0",
     [](const Symbols& n) {
       return 2 * n.Br * n.Bc * D(n) * n.BH *
              n.sum([&](auto i) { return n.live(i) > 0 ? 2 * n.live(i) - stages(n) : 0; });
     }},
    {"shared.K.read_bytes", "2 warps BH sum(live_i) Bc D",
     [](const Symbols& n) {
       return 2 * warps(n) * n.BH * n.sum([&](auto i) { return n.live(i); }) * n.Bc * D(n);
     }},
    {"shared.V.read_bytes", "2 warps BH sum(live_i) Bc D",
     [](const Symbols& n) {
       return 2 * warps(n) * n.BH * n.sum([&](auto i) { return n.live(i); }) * n.Bc * D(n);
     }},
    {"shared.P.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared_bytes_per_block", "2 (Br + 2 stages Bc) D",
     [](const Symbols& n) { return 2 * (n.Br + 2 * stages(n) * n.Bc) * D(n); }},
};

ClaimedTile tile_for(const Problem& p) {
  return {row(p).tile.Br, row(p).tile.Bc};
}

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 128, .Bc = 128, .forms = forms, .tile_for = tile_for};

}  // namespace flashladder::stage_19
