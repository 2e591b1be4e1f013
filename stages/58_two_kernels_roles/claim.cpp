// What this stage moves, computes and allocates: what changed since the stage before. With a prime it is of
// the second kernel, as in stage 57.
#include <algorithm>
#include <string>

#include "common/claims/closed_form.hpp"
#include "common/claims/first_tiles.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_58 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernels have that take d: of the first kernel.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 128, 192, 256>(p.d);
  return {.Br = 64,
          .Bc = 64,
          .D = D,
          .warps = 8,
          .share = 2,
          .num_buffers = 2,
          .step = 64,
          .warpgroups = 2,
          .panels = D / 64};
}

/// What a block of the second kernel works on.
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
const Expr blocks = of_second("blocks'", sum(min(live_i, 1)) * BH);  // whose rows see a key
const Expr keys = of_second("keys'", sum(keys_i) * BH);              // of K and V, as they come
const Expr first_keys = of_second("first_keys'", sum(min(keys_i, claims::Bc)) * BH);  // of first tiles
}  // namespace second

/// Bytes of Q and L2, or of dO and D, of the first two tiles of all blocks of the first kernel.
const Expr first("first", [](const Symbols& n) { return bytes_of_tile(n, 0); });
const Expr next("next", [](const Symbols& n) { return bytes_of_tile(n, 1); });

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 64}, .tile_for = tile_for};
  const Expr all = named("all", 2 * BH * sum(live_i * rows_i) * d + 4 * BH * sum(live_i) * Br);
  claim.backward.as_before = true;
  claim.backward.forms = {
      // four pairs of warps: P is full, and but for a block's last tile, read again; at the end a barrier
      // for
      // each warpgroup
      {"named_barriers", 8 * BH * sum(live_i) - 2 * BHkv * Tc + second::warpgroups * BH * second::Tr},
      {"wgmmas", BH * sum(live_i) * warpgroups * ((D + Br) / 16) +
                     second::tiles * second::warpgroups * ((2 * D + second::Bc) / 16)},
      {"wgmma_waits", 128 * (2 * warpgroups * BH * sum(live_i) + 3 * second::warpgroups * second::tiles)},
      {"wgmma_read_bytes",
       2 * BH * sum(live_i) * (2 * Bc + 4 * Br) * D +
           2 * second::tiles * (2 * second::Br + 3 * second::warpgroups * second::Bc) * D},
      // Q comes into the buffer that the first warpgroup has released behind S: its product behind that, of
      // the tile before the last, is beside it, too. The other one needs Q behind dP, and dO for dP.
      {"wgmma_bytes_in_flight",
       warps / 2 * ((6 * D + 5 * Br) / 16 * all - (4 * D + 5 * Br) / 16 * first - Br / 16 * next) +
           second::warps *
               ((2 * D + second::Bc) / 4 * (second::keys - second::first_keys) + D / 8 * second::keys) * d},
      {"exp_during_wgmmas", second::tiles * second::Br * second::Bc},
      {"flops_during_copies", Br * Bc * D * (8 * BH * sum(live_i) - 4 * BHkv * Tc) +
                                  second::Br * second::Bc * D * (6 * second::tiles - 4 * second::blocks)},
      {"shared_bytes_per_block", max(4 * (Bc + num_buffers * Br) * D + 4 * Br * Bc + 8 * num_buffers * Br,
                                     4 * (second::Br + num_buffers * second::Bc) * D) +
                                     32 * num_buffers + 16},
      {"shared.P.written_bytes", 4 * BH * sum(live_i) * Br * Bc},
      {"shared.P.read_bytes", 4 * BH * sum(live_i) * Br * Bc},
      // what is written to memory goes through shared memory: dQ through what was Q, dV through K, dK
      // through V
      {"shared.Q.read_bytes",
       2 * (2 * BH * sum(live_i) * Br + (second::tiles + BH * second::Tr) * second::Br) * D},
      {"shared.dO.read_bytes", 2 * (2 * BH * sum(live_i) * Br + second::tiles * second::Br) * D},
  };
  return claim;
}

}  // namespace flashladder::stage_58
