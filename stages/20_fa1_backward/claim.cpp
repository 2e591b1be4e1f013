// What this stage moves, computes and allocates, in the symbols of the problem alone.
#include "common/claims/closed_form.hpp"

namespace flashladder::stage_20 {
namespace {

constexpr ClosedForm backward_forms[] = {
    {"global.Q.read_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.K.read_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.V.read_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.O.read_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.dO.read_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.m.read_elements", "BH Tc Nq", [](const Symbols& n) { return n.BH * n.Tc * n.Nq; }},
    {"global.l.read_elements", "BH Tc Nq", [](const Symbols& n) { return n.BH * n.Tc * n.Nq; }},
    {"global.dQ.read_elements", "BH (Tc - 1) Nq d",
     [](const Symbols& n) { return n.BH * (n.Tc - 1) * n.Nq * n.d; }},
    {"global.dQ.written_elements", "BH Tc Nq d", [](const Symbols& n) { return n.BH * n.Tc * n.Nq * n.d; }},
    {"global.dK.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"global.dV.written_elements", "BHkv Nk d", [](const Symbols& n) { return n.BHkv * n.Nk * n.d; }},
    {"device_bytes", "4 * 2 BH Nq", [](const Symbols& n) { return 4 * 2 * n.BH * n.Nq; }},
    {"blocks", "BHkv", [](const Symbols& n) { return n.BHkv; }},
    {"tiles", "BH Tr Tc", [](const Symbols& n) { return n.BH * n.Tr * n.Tc; }},
    {"masked_tiles", "BH Tr Tc if causal, else those with the end of the keys",
     [](const Symbols& n) {
       return n.BH * n.Tr * (n.problem.causal ? n.Tc : n.Nk % n.Bc == 0 ? 0 : 1);
     }},
    {"flops_cuda_cores", "10 Br Bc d BH Tr Tc",
     [](const Symbols& n) { return 10 * n.Br * n.Bc * n.d * n.BH * n.Tr * n.Tc; }},
    {"exp", "BH Tr Tc Br Bc", [](const Symbols& n) { return n.BH * n.Tr * n.Tc * n.Br * n.Bc; }},
    {"div", "BH Tc Nq", [](const Symbols& n) { return n.BH * n.Tc * n.Nq; }},
    {"mul", "4 BH Tr Tc Br Bc + BH Tc Nq d",
     [](const Symbols& n) { return 4 * n.BH * n.Tr * n.Tc * n.Br * n.Bc + n.BH * n.Tc * n.Nq * n.d; }},
    {"barriers", "3 BH Tr Tc", [](const Symbols& n) { return 3 * n.BH * n.Tr * n.Tc; }},
    {"atomics", "0", [](const Symbols&) { return std::int64_t{0}; }},
};

}  // namespace

extern const Claim claim;
const Claim claim{.Br = 32, .Bc = 32, .backward_forms = backward_forms};

}  // namespace flashladder::stage_20
