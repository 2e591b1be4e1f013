#pragma once
// How stage 82 launches its kernel. The stage includes kernel.hpp before this file: a test of a wrong
// kernel has another one in its place.
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"

namespace flashladder::stage_82 {
namespace {

/// How many query heads are a section: their K and V take at most a third of L2. All sections are alike,
/// since the last one's blocks have the end to themselves; unless that takes more than twice as many.
inline int heads_of_section(const Problem& p, int d) {
  const std::int64_t kv_heads = p.batch * p.kv_heads, bytes = 4 * p.Nk * d;  // of K and V of one
  const std::int64_t most = std::max<std::int64_t>(L2_bytes() / 3 / bytes, 1);
  const std::int64_t fewest = tiles(kv_heads, most);
  std::int64_t sections = fewest;
  while (sections < 2 * fewest && kv_heads % sections != 0) ++sections;
  if (kv_heads % sections != 0) sections = fewest;
  return static_cast<int>(tiles(kv_heads, sections) * (p.q_heads / p.kv_heads));
}

/// Starts the kernel for d columns and so many warpgroups that multiply, with a policy.
template <class T, int d, int warpgroups, class Kernel, class Policy>
void start(const Forward& f, Kernel kernel, const Policy& policy) {
  const ForwardBuffers<T> x(f);
  const auto& sequences = policy.sequences();
  const bool packed = sequences.given();
  const Order order{sequences.blocks(f.problem.Nq, Tile<d, warpgroups>::Br), x.batch * x.heads,
                    heads_of_section(f.problem, d)};
  const int row_tiles = order.Tr * order.heads, blocks = std::min(multiprocessors(), row_tiles);
  Sizes n = x.sizes;
  n.causal = policy.causal;
  ExtraBuffer<int> drawn(f, "drawn", packed ? 1 + numbers_known * order.Tr : 1);
  if (packed) {
    launch("sort_row_tiles", sort_row_tiles<std::decay_t<decltype(sequences)>>,
           tiles(order.Tr, sort_threads), sort_threads, 0, drawn, n, sequences, order.Tr,
           Tile<d, warpgroups>::Br);
  } else if (blocks < row_tiles) {
    drawn.fill_zero();
  }
  const auto run = [&](const auto&... arguments) {
    constexpr int threads = Tile<d, warpgroups>::threads, bytes = Shared<d, warpgroups>::bytes;
    if (packed) return launch_dependent("wgmma_forward", kernel, blocks, threads, bytes, arguments...);
    launch("wgmma_forward", kernel, blocks, threads, bytes, arguments...);
  };
  run(map_of<QTile<d, warpgroups>>(f, "Q", x.Q, packed), map_of<KVTile<d>>(f, "K", x.K, packed),
      map_of<KVTile<d>>(f, "V", x.V, packed), x.O, x.L, drawn, x.sizes, order,
      static_cast<int>(f.problem.d), policy);
}

}  // namespace
}  // namespace flashladder::stage_82
