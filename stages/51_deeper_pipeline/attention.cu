// Deeper pipeline: four buffers of K and of V and two of Q, where shared memory has room for them, so that
// the producer is ahead of the products by more than one row tile's end.
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"

#include "stages/51_deeper_pipeline/kernel.hpp"

namespace flashladder::stage_51 {
namespace {

/// How many query heads are a section: their K and V take at most a third of L2, and all sections are
/// alike.
int heads_of_section(const Problem& p, int d) {
  const std::int64_t kv_heads = p.batch * p.kv_heads, bytes = 4 * p.Nk * d;  // of K and V of one
  const std::int64_t most = std::max<std::int64_t>(L2_bytes() / 3 / bytes, 1);
  return static_cast<int>(tiles(kv_heads, tiles(kv_heads, most)) * (p.q_heads / p.kv_heads));
}

void forward(const Forward& f) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T) {
    const ForwardBuffers<T> x(f);
    for_head_dim<T, 64, 96, 128, 192, 256>(f.problem.d, [&](auto d) {
      const Order order{static_cast<int>(tiles(f.problem.Nq, Tile<d>::Br)), x.batch * x.heads,
                        heads_of_section(f.problem, d)};
      ExtraBuffer<int> drawn(f, "drawn", 1);
      drawn.fill_zero();
      launch("wgmma_forward", wgmma_forward<T, d>, std::min(multiprocessors(), order.Tr * order.heads),
             Tile<d>::threads, Shared<d>::bytes, map_of<QTile<d>>(f, "Q", x.Q),
             map_of<KVTile<d>>(f, "K", x.K), map_of<KVTile<d>>(f, "V", x.V), x.O, x.L, drawn, x.sizes,
             order, static_cast<int>(f.problem.d));
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 51,
    .name = "deeper_pipeline",
    .title = "deeper pipeline",
    .idea = "two buffers of Q and four of K and V: the producer is a row tile ahead",
    .claim =
        "bytes in flight, summed over the products of 16 heads of 2,048 rows under the mask: 5.6 -> 15.3 "
        "GB at d = 64; shared memory of a block 64 -> 128 KiB",
    .before = 50,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .forward = forward,
};

}  // namespace flashladder::stage_51
