// What this stage moves, computes and allocates, in the symbols of the problem alone.
#include <algorithm>

#include "common/claims/closed_form.hpp"

namespace flashladder::stage_17 {
namespace {

constexpr std::int64_t R = 4;  // the lanes that hold a row of S and O

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
    {"flops_tensor_cores", "4 Br Bc d BH sum(live_i)",
     [](const Symbols& n) {
       return 4 * n.Br * n.Bc * n.d * n.BH * n.sum([&](auto i) { return n.live(i); });
     }},
    {"exp", "BH sum(live_i) Br (Bc + R)",
     [](const Symbols& n) { return n.BH * n.sum([&](auto i) { return n.live(i); }) * n.Br * (n.Bc + R); }},
    {"div", "BH Tr Br R", [](const Symbols& n) { return n.BH * n.Tr * n.Br * R; }},
    {"mul", "BH sum(live_i) Br (Bc + d + R) + BH Tr Br d",
     [](const Symbols& n) {
       return n.BH * n.sum([&](auto i) { return n.live(i); }) * n.Br * (n.Bc + n.d + R) +
              n.BH * n.Tr * n.Br * n.d;
     }},
    {"log", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"barriers", "2 BH sum(live_i)",
     [](const Symbols& n) { return 2 * n.BH * n.sum([&](auto i) { return n.live(i); }); }},
    {"bytes_in_flight", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"flops_during_copies", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"flops_cuda_cores", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.K.read_bytes", "2 * 4 BH sum(live_i) Bc d",
     [](const Symbols& n) { return 2 * 4 * n.BH * n.sum([&](auto i) { return n.live(i); }) * n.Bc * n.d; }},
    {"shared.V.read_bytes", "2 * 4 BH sum(live_i) Bc d",
     [](const Symbols& n) { return 2 * 4 * n.BH * n.sum([&](auto i) { return n.live(i); }) * n.Bc * n.d; }},
    {"shared.P.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.m_part.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.l_part.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.O_part.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared_bytes_per_block", "2 (Br + 2 Bc) d",
     [](const Symbols& n) { return 2 * (n.Br + 2 * n.Bc) * n.d; }},
};

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 64, .Bc = 32, .forms = forms};

}  // namespace flashladder::stage_17
