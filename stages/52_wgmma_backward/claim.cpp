// What this stage moves, computes and allocates: what changed since the stage before.
#include "common/claims/closed_form.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_52 {

using namespace claims;

namespace {

/// As in attention.cu, with as many columns as the kernel has that takes d.
ClaimedTile tile_for(const Problem& p) {
  const int D = columns_for<64, 128>(p.d);
  return {.Br = D == 64 ? 128 : 64,
          .Bc = 128,
          .D = D,
          .warps = 8,
          .share = 1,
          .num_buffers = 2,
          .step = D == 64 ? 128 : 64,
          .warpgroups = 2,
          .panels = D / 64};
}

/// Rows of the first tile of a head that a block takes, of the blocks of all tiles of keys.
const Expr first_rows("sum_j(first_rows_j)", [](const Symbols& n) {
  std::int64_t rows = 0;
  for (std::int64_t j = 0; j < n.Nk; j += n.Bc) {
    const std::int64_t first = n.problem.causal ? std::max<std::int64_t>(j + n.Nq - n.Nk, 0) : 0;
    rows += std::min(n.Br, n.Nq - first / n.Br * n.Br);
  }
  return rows;
});

}  // namespace

Claim claim() {
  Claim claim{.tile = {.Br = 64, .Bc = 128}, .tile_for = tile_for};
  const Expr wgmmas_of_tile = (2 * D + 2 * Br + Bc) / 16;  // of a warpgroup
  claim.backward.as_before = true;
  claim.backward.forms = {
      {"tma_loads", BH * sum(live_i) * (2 * panels + 2) + BHkv * Tc * 2 * panels},
      {"tma_read_bytes", 4 * BH * sum(live_i * rows_i) * d + 8 * BH * sum(live_i) * Br + 4 * BHkv * Nk * d},
      {"copying_threads", BHkv * Tc},
      {"mbarrier_arrivals", BH * sum(live_i)},
      {"mbarrier_waits", 32 * warps * BH * sum(live_i)},
      {"wgmmas", BH * sum(live_i) * warpgroups * wgmmas_of_tile},
      {"wgmma_waits", 5 * 128 * warpgroups * BH * sum(live_i)},
      {"wgmma_read_bytes",
       2 * BH * sum(live_i) * (2 * Bc * D + 4 * warpgroups * Br * D + D / 64 * Br * Bc + Br / 64 * Bc * D)},
      {"wgmma_bytes_in_flight", warps * wgmmas_of_tile *
                                    (4 * (BH * sum(live_i * rows_i) - BHkv * first_rows) * d +
                                     8 * (BH * sum(live_i) - BHkv * Tc) * Br)},
      {"exp_during_wgmmas", 0},
      {"shared_bytes_per_block",
       4 * (Bc + num_buffers * Br) * D + 2 * Br * Bc + 8 * num_buffers * (Br + 1)},
      {"shared.dS.read_bytes", 2 * (D / 64 * BH * sum(live_i) * Br * Bc)},
      {"shared.Q.read_bytes", 2 * (2 * warpgroups * BH * sum(live_i) * Br * D)},
      {"shared.dO.read_bytes", 2 * (2 * warpgroups * BH * sum(live_i) * Br * D)},
      // BHkv Tc: dK and dV are written through what was K and V
      {"shared.K.read_bytes", 2 * ((1 + Br / 64) * BH * sum(live_i) + BHkv * Tc) * Bc * D},
      {"shared.V.read_bytes", 2 * (BH * sum(live_i) + BHkv * Tc) * Bc * D},
  };
  return claim;
}

}  // namespace flashladder::stage_52
