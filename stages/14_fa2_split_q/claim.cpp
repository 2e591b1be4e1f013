// What this stage moves, computes and allocates, in the symbols of the problem alone.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_14 {
namespace {

constexpr std::int64_t R = 8;  // the threads that hold a row of S and O

constexpr ClosedForm forms[] = {
    {"global.Q.read_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.K.read_elements", "BH Tr Nk d", [](const Symbols& n) { return n.BH * n.Tr * n.Nk * n.d; }},
    {"global.V.read_elements", "BH Tr Nk d", [](const Symbols& n) { return n.BH * n.Tr * n.Nk * n.d; }},
    {"global.O.read_elements", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"global.O.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.L.written_elements", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"device_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"blocks", "BH Tr", [](const Symbols& n) { return n.BH * n.Tr; }},
    {"tiles", "BH Tr Tc", [](const Symbols& n) { return n.BH * n.Tr * n.Tc; }},
    {"masked_tiles", "BH Tr Tc if causal, else those with the end of the keys",
     [](const Symbols& n) {
       return n.BH * n.Tr * (n.problem.causal ? n.Tc : n.Nk % n.Bc == 0 ? 0 : 1);
     }},
    {"flops_cuda_cores", "4 Br Bc d BH Tr Tc",
     [](const Symbols& n) { return 4 * n.Br * n.Bc * n.d * n.BH * n.Tr * n.Tc; }},
    {"exp", "BH Tr Tc Br (Bc + R)",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * n.Br * (n.Bc + R); }},
    {"div", "BH Tr Br R", [](const Symbols& n) { return n.BH * n.Tr * n.Br * R; }},
    {"mul", "BH Tr Tc Br (Bc + d + R) + BH Tr Br d",
     [](const Symbols& n) {
       return n.BH * n.Tr * n.Tc * n.Br * (n.Bc + n.d + R) + n.BH * n.Tr * n.Br * n.d;
     }},
    {"log", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"barriers", "2 BH Tr Tc", [](const Symbols& n) { return 2 * n.BH * n.Tr * n.Tc; }},
    {"shared.m_part.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.l_part.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"shared.O_part.array_bytes", "0", [](const Symbols&) { return std::int64_t{0}; }},
};

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 32, .Bc = 32, .forms = forms};

}  // namespace flashladder::stage_14
