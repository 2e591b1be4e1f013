// What this stage moves, computes and allocates, in the symbols of the problem alone.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_10 {
namespace {

constexpr std::int64_t R = 32;  // the lanes that hold a row of P

constexpr ClosedForm forms[] = {
    {"global.Q.read_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.K.read_elements", "BH Tr Nk d", [](const Symbols& n) { return n.BH * n.Tr * n.Nk * n.d; }},
    {"global.V.read_elements", "BH Tr Nk d", [](const Symbols& n) { return n.BH * n.Tr * n.Nk * n.d; }},
    {"global.S.read_elements", "3 BH Nq Nk", [](const Symbols& n) { return 3 * n.BH * n.Nq * n.Nk; }},
    {"global.P.read_elements", "BH Nq Nk", [](const Symbols& n) { return n.BH * n.Nq * n.Nk; }},
    {"global.S.written_elements", "BH Nq Nk", [](const Symbols& n) { return n.BH * n.Nq * n.Nk; }},
    {"global.P.written_elements", "BH Nq Nk", [](const Symbols& n) { return n.BH * n.Nq * n.Nk; }},
    {"global.O.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.L.written_elements", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"device_bytes", "4 * 2 BH Nq Nk", [](const Symbols& n) { return 4 * 2 * n.BH * n.Nq * n.Nk; }},
    {"blocks", "BH (Tr Tc + ceil(Nq / 4) + Tr)",
     [](const Symbols& n) { return n.BH * (n.Tr * n.Tc + (n.Nq + 3) / 4 + n.Tr); }},
    {"tiles", "BH Tr Tc", [](const Symbols& n) { return n.BH * n.Tr * n.Tc; }},
    {"masked_tiles", "BH Tr Tc if causal, else those with the end of the keys",
     [](const Symbols& n) {
       return n.BH * n.Tr * (n.problem.causal ? n.Tc : n.Nk % n.Bc == 0 ? 0 : 1);
     }},
    {"flops_cuda_cores", "4 Br Bc d BH Tr Tc",
     [](const Symbols& n) { return 4 * n.Br * n.Bc * n.d * n.BH * n.Tr * n.Tc; }},
    {"exp", "2 BH Nq Nk", [](const Symbols& n) { return 2 * n.BH * n.Nq * n.Nk; }},
    {"div", "R BH Nq", [](const Symbols& n) { return R * n.BH * n.Nq; }},
    {"mul", "BH Tr Tc Br Bc + BH Nq Nk",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * n.Br * n.Bc + n.BH * n.Nq * n.Nk; }},
    {"log", "BH Nq", [](const Symbols& n) { return n.BH * n.Nq; }},
    {"barriers", "3 BH Tr Tc", [](const Symbols& n) { return 3 * n.BH * n.Tr * n.Tc; }},
};

// P is what the forward pass saved; dS is dP until softmax_backward has made it dS.
constexpr ClosedForm backward_forms[] = {
    {"global.dO.read_elements", "2 BH Tc Nq d",
     [](const Symbols& n) { return 2 * n.BH * n.Tc * n.Nq * n.d; }},
    {"global.Q.read_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.K.read_elements", "BH Tr Nk d", [](const Symbols& n) { return n.BH * n.Tr * n.Nk * n.d; }},
    {"global.V.read_elements", "BH Tr Nk d", [](const Symbols& n) { return n.BH * n.Tr * n.Nk * n.d; }},
    {"global.P.read_elements", "3 BH Nq Nk", [](const Symbols& n) { return 3 * n.BH * n.Nq * n.Nk; }},
    {"global.dS.read_elements", "4 BH Nq Nk", [](const Symbols& n) { return 4 * n.BH * n.Nq * n.Nk; }},
    {"global.dS.written_elements", "2 BH Nq Nk", [](const Symbols& n) { return 2 * n.BH * n.Nq * n.Nk; }},
    {"global.dQ.written_elements", "BH Nq d", [](const Symbols& n) { return n.BH * n.Nq * n.d; }},
    {"global.dK.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.dV.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"device_bytes", "4 * 2 BH Nq Nk", [](const Symbols& n) { return 4 * 2 * n.BH * n.Nq * n.Nk; }},
    {"blocks", "BH (Tr Tc + ceil(Nq / 4) + Tr) + 2 BHkv Tc",
     [](const Symbols& n) { return n.BH * (n.Tr * n.Tc + (n.Nq + 3) / 4 + n.Tr) + 2 * n.BHkv * n.Tc; }},
    {"tiles", "BH Tr Tc", [](const Symbols& n) { return n.BH * n.Tr * n.Tc; }},
    {"flops_cuda_cores", "8 Br Bc d BH Tr Tc",
     [](const Symbols& n) { return 8 * n.Br * n.Bc * n.d * n.BH * n.Tr * n.Tc; }},
    {"exp", "0", [](const Symbols&) { return std::int64_t{0}; }},
    {"mul", "BH Tr Tc Br Bc + 3 BH Nq Nk",
     [](const Symbols& n) { return n.BH * n.Tr * n.Tc * n.Br * n.Bc + 3 * n.BH * n.Nq * n.Nk; }},
    {"barriers", "BH Tr Tc (1 + 3 * 2)", [](const Symbols& n) { return 7 * n.BH * n.Tr * n.Tc; }},
    {"atomics", "0", [](const Symbols&) { return std::int64_t{0}; }},
};

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 32, .Bc = 32, .forms = forms, .backward_forms = backward_forms};

}  // namespace flashladder::stage_10
