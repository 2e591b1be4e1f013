// What this stage moves, computes and allocates, in the symbols of the problem alone.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_12 {
namespace {

constexpr std::int64_t R = 4;  // the threads that hold a row of O

constexpr ClosedForm forms[] = {
    {"global.Q.read_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.K.read_elements", "BH Nk d", [](const Symbols& n) { return n.BH * n.Nk * n.d; }},
    {"global.V.read_elements", "BH Nk d", [](const Symbols& n) { return n.BH * n.Nk * n.d; }},
    {"global.O.read_elements", "BH (Tc - 1) Nq d",
     [](const Symbols& n) { return n.BH * (n.Tc - 1) * n.Nq * n.d; }},
    {"global.m.read_elements", "BH (Tc - 1) Nq", [](const Symbols& n) { return n.BH * (n.Tc - 1) * n.Nq; }},
    {"global.l.read_elements", "BH (Tc - 1) Nq", [](const Symbols& n) { return n.BH * (n.Tc - 1) * n.Nq; }},
    {"global.O.written_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.m.written_elements", "BH (Tc - 1) Nq",
     [](const Symbols& n) { return n.BH * (n.Tc - 1) * n.Nq; }},
    {"global.l.written_elements", "BH (Tc - 1) Nq",
     [](const Symbols& n) { return n.BH * (n.Tc - 1) * n.Nq; }},
    {"global.L.written_elements", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"device_bytes", "4 * 2 BH Nq", [](const Symbols& n) { return 4 * 2 * n.BH * n.Nq; }},
    {"blocks", "BH", [](const Symbols& n) { return n.BH; }},
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
    {"mul", "BH Tr Br (Tc (Bc + d + R) + d)",
     [](const Symbols& n) { return n.BH * n.Tr * n.Br * (n.Tc * (n.Bc + n.d + R) + n.d); }},
    {"log", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"barriers", "BH Tr Tc (3 + 2 d / 32)",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * (3 + 2 * n.d / 32); }},
    {"shared.m_part.written_elements", "BH Tr Tc 4 Br",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * 4 * n.Br; }},
    {"shared.m_part.read_elements", "BH Tr Tc 4 Br (4 R + R)",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * 4 * n.Br * (4 * R + R); }},
    {"shared.l_part.written_elements", "BH Tr Tc 4 Br",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * 4 * n.Br; }},
    {"shared.O_part.written_elements", "BH Tr Tc 4 Br d",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * 4 * n.Br * n.d; }},
};

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 32, .Bc = 32, .forms = forms};

}  // namespace flashladder::stage_12
