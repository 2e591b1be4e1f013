// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/claims/row_tile_order.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_49 {

using namespace claims;

namespace {

/// The sum of `term` over the pairs of row tiles of which a block computes the second behind the first,
/// where the first has at least so many tiles of keys, and the second, of which the term is, has some.
Expr sum_pairs(std::string_view pairs, const Expr& term, std::int64_t least_live) {
  const auto value = [=](Symbols n) {
    const auto order = longest_first(n, L2_bytes() / 3);
    std::int64_t total = 0;
    for (std::size_t next = multiprocessors(); next < order.size(); ++next) {
      n.i = order[next - multiprocessors()];  // on the emulator blocks take turns
      const bool long_enough = n.live() >= least_live;
      n.i = order[next];
      if (long_enough && n.live() > 0) total += term.value(n);
    }
    return total;
  };
  const std::string over(pairs);
  return term.text() == "1" ? Expr(over, value) : Expr("sum_" + over + "(" + term.text() + ")", value);
}

/// The pairs between which the block computes one row tile that sees no key: that gives Q's place back at
/// once, so that the first keys of the second come beside the last P~ V of the first, but no Q.
std::int64_t pairs_past_one(Symbols n) {
  const auto order = longest_first(n, L2_bytes() / 3);
  const auto sees_keys = [&](std::size_t number) {
    n.i = order[number];
    return n.live() > 0;
  };
  constexpr std::size_t turn = multiprocessors();
  std::int64_t pairs = 0;
  for (std::size_t next = 2 * turn; next < order.size(); ++next)
    pairs += sees_keys(next - 2 * turn) && !sees_keys(next - turn) && sees_keys(next);
  return pairs;
}

// As stage 47 says of its own.
constexpr bool least = true, random_too = true;

}  // namespace

Claim claim() {
  Claim claim;
  const Expr live_blocks = sum(min(live_i, 1));  // those with a row that sees a key
  const Expr blocks = min(multiprocessors(), BH * Tr);
  const Expr pairs = sum_pairs("pairs", 1, 1), long_pairs = sum_pairs("long_pairs", 1, 2);
  const Expr past_one = {"pairs_past_one", pairs_past_one};
  const Expr producer_registers = {"24 for 2 warpgroups, else 32",
                                   [](const Symbols& n) { return n.warpgroups == 2 ? 24 : 32; }};
  // As before, and where another row tile follows: beside the last S its first K, beside the last P~ V its
  // first K and V, its Q, and its second K. Where there are two tiles, its first K beside P~ V of the last
  // but one, and else its first V beside the only S.
  const Expr keys = min(live_i * Bc, Nk), next = max(keys - Bc, 0), behind_it = max(keys - 2 * Bc, 0),
             all_but_last = max(live_i - 1, 0) * Bc;
  const Expr followers =
      (D / 16 * (2 * pairs - long_pairs) + Bc / 16 * (2 * pairs + long_pairs + 2 * past_one)) *
          min(Bc, Nk) +
      Bc / 16 * sum_pairs("pairs", rows_i + min(next, Bc), 1);
  claim.forward.as_before = true;
  claim.forward.forms = {
      {"blocks", blocks},
      {"barriers", blocks},
      {"mbarrier_arrivals",
       BH * (Tr * (1 + 128 * warpgroups) + sum(live_i) * (2 + 8 * warpgroups)) + blocks},
      {"mbarrier_waits",
       (BH * Tr + blocks) * (1 + 128 * warpgroups) + BH * sum(live_i) * (2 + 256 * warpgroups)},
      {"wgmma_bytes_in_flight",
       2 * warps *
           (BH * sum(D / 16 * (keys + 2 * next - behind_it + all_but_last) + Bc / 16 * (next + behind_it)) +
            followers) *
           d},
      {"flops_during_copies", 2 * Br * Bc * D * (BH * sum(max(2 * live_i - 1, 0)) + pairs + past_one)},
      {"fewest_registers", producer_registers},
      {"shared_bytes_per_block", 2 * (Br + 2 * num_buffers * Bc) * D + 32 * num_buffers + 48},
      {"named_barriers", BH * warpgroups * scale_is_negative * live_blocks},
      {"shuffles", BH * ((live_blocks + 2 * Tr) * Br / 4 + Tr * Br * D / 64), least, random_too},
      {"atomics", drawn(BH * Tr, multiprocessors())},
      {"device_bytes", 4},
  };
  // Which block has which row tiles is another matter on a GPU.
  claim.forward.dropped = {"copying_threads", "most_tiles_of_multiprocessor"};
  return claim;
}

}  // namespace flashladder::stage_49
