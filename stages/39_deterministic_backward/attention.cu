// Deterministic: a fixed number of splits divide the tiles of keys. The block of a split adds their dQ to
// memory of its own, and a kernel that follows sums the splits in their order: the same bits on every run.
#include "common/kernel/host.hpp"
#include "stages/39_deterministic_backward/table.hpp"

#include "stages/39_deterministic_backward/kernel.hpp"

namespace flashladder::stage_39 {
namespace {

using namespace tiles_39;

void backward(const Backward& f) {
  for_row<table>(f.problem, [&](auto chosen) {
    constexpr Row row = chosen;
    constexpr Tile tile = row.tile;
    using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
    constexpr int d = row.d;
    const BackwardBuffers<T> x(f);
    const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch;
    const unsigned Tc = tiles(f.problem.Nk, tile.Bc);
    // Two tiles each at least, for 256 blocks. It depends on the shape alone, and not on the GPU.
    const unsigned splits = tiles(Tc, tiles(Tc, std::min(tiles(256, kv_heads * batch), tiles(Tc, 2))));
    const int padded_Nq = tile.Br * static_cast<int>(tiles(f.problem.Nq, tile.Br));  // of whole tiles
    const std::int64_t rows = x.L.elements();
    ExtraBuffer D(f, "D", rows), L2(f, "L2", rows),
        dQ_split(f, "dQ_split", splits * heads * batch * std::int64_t{padded_Nq} * d);
    launch("prepare", prepare<T, d>, dim3(tiles(padded_Nq, helpers / (d % 64 == 0 ? 8 : 4)), heads, batch),
           helpers, 0, x.O, x.dO, x.L, D, L2, x.sizes);
    launch("fa2_backward",
           fa2_backward<T, d, row.causal, tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.share,
                        tile.step, tile.unroll>,
           row.causal ? dim3(kv_heads, batch, splits) : dim3(splits, kv_heads, batch), 32 * tile.warps,
           Shared<d, tile.Br, tile.Bc, tile.share, tile.num_buffers>::bytes, x.Q, x.K, x.V, x.dO, L2, D,
           dQ_split, x.dK, x.dV, x.sizes, padded_Nq);
    launch("convert", convert<T, d, tile.Br, tile.Bc>,
           dim3(tiles(tiles(f.problem.Nq, 16) * std::int64_t{d}, helpers), heads, batch), helpers, 0,
           dQ_split, x.dQ, x.sizes, padded_Nq, splits);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 39,
    .name = "deterministic_backward",
    .title = "deterministic backward",
    .idea = "a fixed number of splits, each with its own dQ, summed in a fixed order: always the same bits",
    .claim = "atomics -> 0; extra memory 4 BH Nq d -> 4 splits BH Nq d bytes, splits <= ceil(256 / BHkv)",
    .before = 38,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .backward = backward,
};

}  // namespace flashladder::stage_39
