// Tuned: in most tiles a warp has 32 rows, so that each fragment of K and V serves two products. A tile
// takes one barrier with two buffers, and two with one, in which K and V take turns. Powers of 2, with the
// scale in one multiply-add, are computed between the products. m is raised, and O~ rescaled, only where P~
// would become too large. The blocks with the most tiles come first. O is written in whole rows.
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
    const unsigned heads = x.heads, batch = x.batch, Tr = tiles(f.problem.Nq, tile.Br);
    launch("fa2_forward",
           fa2_forward<T, row.d, row.causal, tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.unroll>,
           row.causal ? dim3(heads, batch, Tr) : dim3(Tr, heads, batch), 32 * tile.warps,
           Shared<row.d, tile.Br, tile.Bc, tile.num_buffers>::bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes,
           static_cast<int>(f.problem.d));
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 29,
    .name = "tuned",
    .title = "tuned",
    .idea =
        "up to 32 rows a warp, one barrier a tile with two buffers, exponentials to base 2 between the "
        "products, O~ rescaled only where it must be, longest blocks first",
    .claim =
        "shared bytes of K and V read for a row and key halved for d <= 128, except d <= 32 under the "
        "mask; wavefronts / ideal stays 1.00",
    .before = 28,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_29
