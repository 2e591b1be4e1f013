// Tuned: a table has the tile, the number of warps and of buffers for each GPU, dtype, head dimension and
// mask: for Hopper those that the autotuner found. Each has a kernel of its own, which knows at compile
// time whether there is a mask. Under the mask the blocks with the most tiles come first.
#include "common/kernel/host.hpp"
#include "stages/29_tuned/table.hpp"

#include "stages/29_tuned/kernel.hpp"

namespace flashladder::stage_29 {
namespace {

using namespace tiles_29;

void forward(const Forward& f) {
  for_row<table>(f.problem, [&](auto chosen) {
    constexpr Row row = chosen;
    constexpr Tile tile = row.tile;
    using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
    const ForwardBuffers<T> x(f);
    // lab: launch the kernel of this row of the table, with a grid in the order that it reads
    const unsigned heads = x.heads, batch = x.batch, Tr = tiles(f.problem.Nq, tile.Br);
    launch("fa2_forward",
           fa2_forward<T, row.d, row.causal, tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.unroll>,
           row.causal ? dim3(heads, batch, Tr) : dim3(Tr, heads, batch), 32 * tile.warps,
           Shared<row.d, tile.Br, tile.Bc, tile.num_buffers>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes,
           static_cast<int>(f.problem.d));
    // end of lab
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 29,
    .name = "tuned",
    .title = "tuned",
    .idea =
        "a tile from a table for each GPU, dtype, head dimension and mask, for Hopper the autotuner's; "
        "under the mask the longest blocks first",
    .claim =
        "the forms of stage 28 at the tile of the table, Bc 32 -> 64 or 128: maxima and barriers "
        "a row once for 64 or 128 keys; no bank conflicts",
    .before = 28,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_29
