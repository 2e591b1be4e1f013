// What this stage moves, computes and allocates, in the symbols of the problem alone. live_i is the number
// of tiles of keys that some row of row tile i sees, rows_i the number of its rows: Br, but in the last
// tile.
#include <algorithm>

#include "common/claims/closed_form.hpp"

namespace flashladder::stage_21 {
namespace {

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
    {"global.dQ.read_elements", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"global.dQ.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dQ.atomic_elements", "BH sum(live_i rows_i) d",
     [](const Symbols& n) { return n.BH * live_rows(n) * n.d; }},
    {"global.dK.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.dV.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"device_bytes", "4 BH Nq", [](const Symbols& n) { return 4 * n.BH * n.Nq; }},
    {"blocks", "BHkv Tc + BH ceil(Nq / 4)",
     [](const Symbols& n) { return n.BHkv * n.Tc + n.BH * ((n.Nq + 3) / 4); }},
    {"tiles", "BH sum(live_i)", [](const Symbols& n) { return n.BH * live(n); }},
    {"masked_tiles", "BH sum(live_i - whole_i)",
     [](const Symbols& n) { return n.BH * n.sum([&](std::int64_t i) { return n.masked(i); }); }},
    {"flops_cuda_cores", "10 Br Bc d BH sum(live_i)",
     [](const Symbols& n) { return 10 * n.Br * n.Bc * n.d * n.BH * live(n); }},
    {"exp", "BH sum(live_i) Br Bc", [](const Symbols& n) { return n.BH * live(n) * n.Br * n.Bc; }},
    {"div", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"mul", "3 BH sum(live_i) Br Bc + BH Nq d",
     [](const Symbols& n) { return 3 * n.BH * live(n) * n.Br * n.Bc + n.BH * n.Nq * n.d; }},
    {"barriers", "3 BH sum(live_i)", [](const Symbols& n) { return 3 * n.BH * live(n); }},
    {"atomics", "BH sum(live_i rows_i) d", [](const Symbols& n) { return n.BH * live_rows(n) * n.d; }},
};

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 32, .Bc = 32, .backward_forms = backward_forms};

}  // namespace flashladder::stage_21
