// Deterministic: a fixed number of splits divide the tiles of keys. A block takes the tiles of
// its split one after the other and adds their dQ to memory of its own, by plain loads and stores; a kernel
// that follows sums the splits, always in the same order. No atomics, so every run gives the same bits.
#include <algorithm>

#include "common/kernel/host.hpp"
#include "stages/39_deterministic_backward/table.hpp"

#include "stages/39_deterministic_backward/kernel.hpp"

namespace flashladder::stage_39 {
namespace {

using namespace tiles_39;

/// How many splits divide the Tc tiles of keys: so many that there are 256 blocks, but at least two tiles
/// for each, and as many for each as for the others. It depends on the shape of the problem alone, and not
/// on the GPU.
unsigned splits_of(unsigned kv_heads, unsigned Tc) {
  // lab: the number of splits
  // given: return Tc;
  const unsigned most = std::min((256 + kv_heads - 1) / kv_heads, (Tc + 1) / 2),
                 each = (Tc + most - 1) / most;
  return (Tc + each - 1) / each;
  // end of lab
}

void backward(const Backward& f) {
  for_row<table>(f.problem, [&](auto chosen) {
    constexpr Row row = chosen;
    constexpr Tile tile = row.tile;
    using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
    constexpr int d = row.d, Br = tile.Br, Bc = tile.Bc, num_buffers = tile.num_buffers;
    const BackwardBuffers<T> x(f);
    const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch;
    const unsigned splits = splits_of(kv_heads * batch, tiles(f.problem.Nk, Bc));
    const int padded_Nq = Br * static_cast<int>(tiles(f.problem.Nq, Br));  // of whole tiles
    const int all_heads = static_cast<int>(heads * batch);
    ExtraBuffer D(f, "D", all_heads * std::int64_t{padded_Nq}), L2(f, "L2", D.elements()),
        dQ_split(f, "dQ_split", splits * D.elements() * d);
    launch("prepare", prepare<T, d>, dim3(tiles(padded_Nq, helpers / (d % 64 == 0 ? 8 : 4)), heads, batch),
           helpers, 0, x.O, x.dO, x.L, D, L2, x.sizes, padded_Nq);
    launch(
        "fa2_backward",
        fa2_backward<T, d, row.causal, Br, Bc, tile.warps, num_buffers, tile.share, tile.step, tile.unroll>,
        row.causal ? dim3(kv_heads, batch, splits) : dim3(splits, kv_heads, batch), 32 * tile.warps,
        Shared<d, Br, Bc, num_buffers, tile.share>::bytes, x.Q, x.K, x.V, x.dO, D, L2, dQ_split, x.dK, x.dV,
        x.sizes, padded_Nq, all_heads);
    launch("convert", convert<T, d, Br, Bc>,
           dim3(tiles(tiles(f.problem.Nq, 16) * std::int64_t{d}, helpers), heads, batch), helpers, 0,
           dQ_split, x.dQ, x.sizes, padded_Nq, all_heads, splits);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 39,
    .name = "deterministic_backward",
    .title = "deterministic backward",
    .idea =
        "a fixed number of splits, each with a dQ of its own, summed in a fixed order: the same bits every "
        "time",
    .claim =
        "atomics BH sum(live_i) Br d -> 0; extra memory 4 BH Nq d -> 4 splits BH Nq d bytes, splits <= "
        "ceil(256 / BHkv)",
    .before = 38,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .backward = backward,
};

}  // namespace flashladder::stage_39
