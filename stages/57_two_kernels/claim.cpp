// What this stage moves, computes and allocates: what changed since the stage before. Br, Bc and what
// follows from them are the first kernel's, whose blocks have keys. With a prime, as Br', they are the
// second one's, whose blocks have rows.
#include <algorithm>
#include <string>

#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"

namespace flashladder::stage_57 {

using namespace claims;

namespace {

/// What a block of the second kernel works on. Stage 58, which has these forms too, has more than 128
/// columns.
ClaimedTile row_tile(std::int64_t D) {
  const int warpgroups = D <= 128 ? 3 : 2;
  return {.Br = 64 * warpgroups,
          .Bc = D <= 192 ? 64 : 32,
          .D = D,
          .warps = 4 * warpgroups,
          .num_buffers = 2,
          .warpgroups = warpgroups,
          .panels = D / 64};
}

/// `term` with the tile of the second kernel.
Expr of_second(const std::string& name, const Expr& term) {
  return {name, [term](const Symbols& n) { return term.value({n.problem, row_tile(n.D)}); }};
}

namespace second {
const Expr Br = of_second("Br'", claims::Br);
const Expr Bc = of_second("Bc'", claims::Bc);
const Expr Tr = of_second("Tr'", claims::Tr);
const Expr warps = of_second("warps'", claims::warps);
const Expr warpgroups = of_second("warpgroups'", claims::warpgroups);
const Expr tiles = of_second("tiles'", sum(live_i) * BH);
const Expr masked = of_second("masked'", sum(live_i - whole_i) * BH);
const Expr blocks = of_second("blocks'", sum(min(live_i, 1)) * BH);       // whose rows see a key
const Expr rows = of_second("rows'", sum(min(live_i, 1) * rows_i) * BH);  // of Q and dO, as they come
const Expr keys = of_second("keys'", sum(keys_i) * BH);                   // of K and V, as they come
const Expr first_keys = of_second("first_keys'", sum(min(keys_i, claims::Bc)) * BH);  // of first tiles
}  // namespace second

/// Bytes of Q and L2, or of dO and D, of the first tile of all blocks of the first kernel.
const Expr first("first", [](const Symbols& n) { return bytes_of_tile(n, 0); });

}  // namespace

Claim claim() {
  Claim claim;
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * BH * sum(live_i) * Br);
  const Expr scores = BH * sum(live_i) * Br * Bc + second::tiles * second::Br * second::Bc;
  claim.backward.as_before = true;
  claim.backward.dropped = {"global.dQ_sum.written_elements", "global.dQ_sum.atomic_elements",
                            "global.dQ_sum.read_elements"};
  claim.backward.forms = {
      {"tma_loads", BH * sum(live_i) * (2 * panels + 2) + BHkv * Tc * 2 * panels +
                        2 * panels * (second::blocks + second::tiles)},
      {"tma_read_bytes", 4 * BH * sum(live_i * rows_i) * d + 8 * BH * sum(live_i) * Br + 4 * BHkv * Nk * d +
                             4 * (second::rows + second::keys) * d},
      {"global.Q.read_elements", (BH * sum(live_i * rows_i) + second::rows) * d},
      {"global.K.read_elements", (BHkv * Nk + second::keys) * d},
      {"global.V.read_elements", (BHkv * Nk + second::keys) * d},
      {"global.dO.read_elements", (BH * (sum(live_i * rows_i) + Nq) + second::rows) * d},
      {"global.L2.read_elements", BH * (sum(live_i) * Br + 4 * Nq)},
      {"global.D.read_elements", BH * (sum(live_i) * Br + 4 * Nq)},
      {"device_bytes", 8 * BH * Tr * Br},
      {"blocks", BHkv * Tc + BH * (Tr * Br / 16 + second::Tr)},
      {"tiles", BH * sum(live_i) + second::tiles},
      {"masked_tiles", BH * sum(live_i - whole_i) + second::masked},
      {"flops_tensor_cores",
       8 * Br * Bc * D * BH * sum(live_i) + 6 * second::Br * second::Bc * D * second::tiles},
      {"exp", scores},
      {"exp2", scores},
      {"fma", scores},
      {"mul", 2 * (scores) + BH * (Nq * (1 + d) + second::Tr * second::Br * D) + BHkv * Tc * Bc * D},
      {"copying_threads", BHkv * Tc + second::blocks},
      {"mbarrier_arrivals", BHkv * Tc + BH * sum(live_i) * (2 + 8 * warpgroups) + second::blocks +
                                second::tiles * (2 + 8 * second::warpgroups)},
      {"mbarrier_waits", 128 * warpgroups * BHkv * Tc + BH * sum(live_i) * (2 + 256 * warpgroups) +
                             128 * second::warpgroups * second::blocks +
                             second::tiles * (2 + 256 * second::warpgroups)},
      {"barriers", BHkv * Tc + BH * second::Tr},
      {"named_barriers", warpgroups * BHkv * Tc + second::warpgroups * BH * second::Tr},
      {"atomics", 0},
      {"wgmmas", BH * sum(live_i) * warpgroups * ((D + Br) / 8) +
                     second::tiles * second::warpgroups * ((2 * D + second::Bc) / 16)},
      {"wgmma_waits", 128 * (4 * warpgroups * BH * sum(live_i) + 3 * second::warpgroups * second::tiles)},
      {"wgmma_read_bytes",
       2 * BH * sum(live_i) * (2 * Bc + 4 * warpgroups * Br) * D +
           2 * second::tiles * (2 * second::Br + 3 * second::warpgroups * second::Bc) * D},
      // Beside a product of a tile the next one is in flight, and beside the first product what the second
      // one is of, too: in the first kernel rows of Q, L2, dO and D, in the second keys of K and V.
      {"wgmma_bytes_in_flight",
       warps * ((D + Br) / 4 * (all - first) + D / 16 * all) +
           second::warps *
               ((2 * D + second::Bc) / 4 * (second::keys - second::first_keys) + D / 8 * second::keys) * d},
      {"exp_during_wgmmas", scores},
      {"flops_during_copies", Br * Bc * D * (8 * BH * sum(live_i) - 6 * BHkv * Tc) +
                                  second::Br * second::Bc * D * (6 * second::tiles - 4 * second::blocks)},
      {"shared_bytes_per_block", max(4 * (Bc + num_buffers * Br) * D + 8 * num_buffers * Br,
                                     4 * (second::Br + num_buffers * second::Bc) * D) +
                                     32 * num_buffers + 16},
      {"shared.dS.written_bytes", 0},
      {"shared.dS.read_bytes", 0},
      // what is written to memory goes through shared memory: dQ through what was Q, dK through K, dV
      // through V
      {"shared.Q.read_bytes",
       2 * (2 * warpgroups * BH * sum(live_i) * Br + (second::tiles + BH * second::Tr) * second::Br) * D},
      {"shared.dO.read_bytes",
       2 * (2 * warpgroups * BH * sum(live_i) * Br + second::tiles * second::Br) * D},
      {"shared.K.read_bytes",
       2 * ((BH * sum(live_i) + BHkv * Tc) * Bc + 2 * second::warpgroups * second::tiles * second::Bc) * D},
      {"shared.V.read_bytes",
       2 * ((BH * sum(live_i) + BHkv * Tc) * Bc + second::warpgroups * second::tiles * second::Bc) * D},
  };
  return claim;
}

}  // namespace flashladder::stage_57
