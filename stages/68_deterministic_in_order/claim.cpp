// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/staying_blocks.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_68 {

using namespace claims;

namespace {

/// Whether a block has all keys of a head: dQ_sum of the heads under way takes at most three quarters of
/// L2, and seven of eight multiprocessors have one in the mean.
bool in_order(const Symbols& n) {
  const std::int64_t blocks = std::min<std::int64_t>(multiprocessors(), n.BHkv),
                     turns = (n.BHkv + multiprocessors() - 1) / multiprocessors();
  return 4 * blocks * (4 * n.BH / n.BHkv * n.Nq * n.D) <= 3 * L2_bytes() &&
         8 * n.BHkv >= 7 * turns * multiprocessors();
}

/// Where dQ is in order a counter has the form of these blocks, and of floating point sums; else that of
/// the stage before.
void where_in_order(ClosedForm& form) {
  static const StayingBlocks stay{multiprocessors(), L2_bytes(), true};
  static const std::vector<ClosedForm> ordered = [] {
    const Expr fragments = ceil_div(Nq, 16), tiles = BH * sum(live_i);
    const Expr added = BH * sum(live_i - min(live_i, 1)) * Br * D;  // to what the first keys have stored
    std::vector<ClosedForm> forms = stay.forms();
    forms.insert(
        forms.end(),
        {{"global.K.read_elements", BHkv * Nk * d},
         {"global.V.read_elements", BHkv * Nk * d},
         {"global.L.read_elements", BH * Nq},
         {"global.largest.written_elements", 0},
         {"global.largest.read_elements", 0},
         {"global.units.written_elements", 0},
         {"global.units.read_elements", 0},
         {"global.dQ_sum.atomic_elements", added},
         {"device_bytes", 4 * BH * Tr * Br * (2 + D) + 4},
         {"blocks", stay.blocks() + BH * (Tr * Br * 8 / 128 + ceil_div(fragments * D, 128))},
         {"div", 0},
         {"fma", tiles * Br * Bc},
         {"mul", 2 * tiles * Br * Bc + BH * (Nq * (1 + d) + 16 * fragments * D) + BHkv * Tc * Bc * D},
         {"atomics", added + stay.drawn()},
         {"dependent_launches", 2}});
    return forms;
  }();
  change_where(form, ordered, "in order", in_order, "as in stage 67");
}

}  // namespace

Claim claim() {
  Claim claim;
  claim.same_sums = true;
  claim.backward.as_before = true;
  claim.backward.change = where_in_order;
  return claim;
}

}  // namespace flashladder::stage_68
