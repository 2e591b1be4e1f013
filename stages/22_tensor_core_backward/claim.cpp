// What this stage moves, computes and allocates, in the symbols of the problem alone. live_i is the number
// of tiles of keys that some row of row tile i sees, rows_i the number of its rows: Br, but in the last
// tile. share is the number of warps that share 16 keys.
#include <algorithm>

#include "common/claims/closed_form.hpp"

namespace flashladder::stage_22 {
namespace {

constexpr std::int64_t warps = 4;

/// 1, or 2 where the registers of a warp do not hold dK and dV of its keys.
std::int64_t share(std::int64_t d) {
  return d <= 128 ? 1 : 2;
}
/// sum(live_i): the tiles of scores of a head.
std::int64_t live(const Symbols& n) {
  return n.sum([&](std::int64_t i) { return n.live(i); });
}
/// sum(live_i rows_i): the rows of those tiles.
std::int64_t live_rows(const Symbols& n) {
  return n.sum([&](std::int64_t i) { return n.live(i) * std::min(n.Br, n.Nq - i * n.Br); });
}

constexpr ClosedForm backward_forms[] = {
    {"global.Q.read_elements", "BH sum(live_i rows_i) d",
     [](const Symbols& n) { return n.BH * live_rows(n) * n.d; }},
    {"global.K.read_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.V.read_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.O.read_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dO.read_elements", "BH (sum(live_i rows_i) + Nq) d",
     [](const Symbols& n) { return n.BH * (live_rows(n) + n.Nq) * n.d; }},
    {"global.L.read_elements", "BH sum(live_i rows_i)",
     [](const Symbols& n) { return n.BH * live_rows(n); }},
    {"global.D.read_elements", "BH sum(live_i rows_i)",
     [](const Symbols& n) { return n.BH * live_rows(n); }},
    {"global.D.written_elements", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"global.dQ_sum.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dQ_sum.atomic_elements", "BH sum(live_i rows_i) d",
     [](const Symbols& n) { return n.BH * live_rows(n) * n.d; }},
    {"global.dQ_sum.read_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dQ.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dQ.atomic_elements", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"global.dK.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.dV.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"device_bytes", "4 BH Nq (1 + d)", [](const Symbols& n) { return 4 * n.BH * n.Nq * (1 + n.d); }},
    {"blocks", "BHkv Tc + 2 BH ceil(Nq / 4)",
     [](const Symbols& n) { return n.BHkv * n.Tc + 2 * n.BH * ((n.Nq + 3) / 4); }},
    {"tiles", "BH sum(live_i)", [](const Symbols& n) { return n.BH * live(n); }},
    {"masked_tiles", "BH sum(live_i - whole_i)",
     [](const Symbols& n) { return n.BH * n.sum([&](std::int64_t i) { return n.masked(i); }); }},
    {"flops_tensor_cores", "10 Br Bc d BH sum(live_i)",
     [](const Symbols& n) { return 10 * n.Br * n.Bc * n.d * n.BH * live(n); }},
    {"flops_cuda_cores", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"exp", "BH sum(live_i) Br Bc", [](const Symbols& n) { return n.BH * live(n) * n.Br * n.Bc; }},
    {"div", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"mul", "2 BH sum(live_i) Br Bc + 2 BH Nq d + BHkv Nk d",
     [](const Symbols& n) {
       return 2 * n.BH * live(n) * n.Br * n.Bc + 2 * n.BH * n.Nq * n.d + n.BHkv * n.Nk * n.d;
     }},
    {"barriers", "(1 + share) BH sum(live_i)",
     [](const Symbols& n) { return (1 + share(n.d)) * n.BH * live(n); }},
    {"atomics", "BH sum(live_i rows_i) d", [](const Symbols& n) { return n.BH * live_rows(n) * n.d; }},
    {"shared.P.read_bytes", "4 (share - 1) BH sum(live_i) Br Bc",
     [](const Symbols& n) { return 4 * (share(n.d) - 1) * n.BH * live(n) * n.Br * n.Bc; }},
    {"shared.P.array_bytes", "4 (share - 1) Br Bc",
     [](const Symbols& n) { return 4 * (share(n.d) - 1) * n.Br * n.Bc; }},
    {"shared.dS.written_bytes", "2 BH sum(live_i) Br Bc",
     [](const Symbols& n) { return 2 * n.BH * live(n) * n.Br * n.Bc; }},
    {"shared.dS.read_bytes", "2 * 2 BH sum(live_i) Br Bc",
     [](const Symbols& n) { return 2 * 2 * n.BH * live(n) * n.Br * n.Bc; }},
    {"shared.Q.read_bytes", "2 (2 warps / share) BH sum(live_i) Br d",
     [](const Symbols& n) { return 2 * (2 * warps / share(n.d)) * n.BH * live(n) * n.Br * n.d; }},
    {"shared.dO.read_bytes", "2 (2 warps / share) BH sum(live_i) Br d",
     [](const Symbols& n) { return 2 * (2 * warps / share(n.d)) * n.BH * live(n) * n.Br * n.d; }},
    {"shared.K.read_bytes", "2 * 3 BH sum(live_i) Bc d",
     [](const Symbols& n) { return 2 * 3 * n.BH * live(n) * n.Bc * n.d; }},
    {"shared.V.read_bytes", "2 BH sum(live_i) Bc d",
     [](const Symbols& n) { return 2 * n.BH * live(n) * n.Bc * n.d; }},
};

ClaimedTile tile_for(const Problem& p) {
  return {32, 16 * warps / share(p.d)};
}

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 32, .Bc = 64, .tile_for = tile_for, .backward_forms = backward_forms};

}  // namespace flashladder::stage_22
