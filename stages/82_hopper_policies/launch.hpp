#pragma once
// How stage 82 launches its kernel. The stage includes kernel.hpp before this file: a test of a wrong
// kernel has another one in its place.
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"

namespace flashladder::stage_82 {
namespace {

/// How many query heads are a section: their K and V take at most a third of L2, and all sections are
/// alike.
inline int heads_of_section(const Problem& p, int d) {
  const std::int64_t kv_heads = p.batch * p.kv_heads, bytes = 4 * p.Nk * d;  // of K and V of one
  const std::int64_t most = std::max<std::int64_t>(L2_bytes() / 3 / bytes, 1);
  return static_cast<int>(tiles(kv_heads, tiles(kv_heads, most)) * (p.q_heads / p.kv_heads));
}

/// Starts the kernel for d columns and so many warpgroups that multiply, with a policy.
template <class T, int d, int warpgroups, class Kernel, class Policy>
void start(const Forward& f, Kernel kernel, const Policy& policy) {
  const ForwardBuffers<T> x(f);
  const auto& sequences = policy.sequences();
  const bool packed = sequences.given();
  const Order order{sequences.blocks(f.problem.Nq, Tile<d, warpgroups>::Br), x.batch * x.heads,
                    heads_of_section(f.problem, d)};
  ExtraBuffer<int> drawn(f, "drawn", 1);
  drawn.fill_zero();
  launch("wgmma_forward", kernel, std::min(multiprocessors(), order.Tr * order.heads),
         Tile<d, warpgroups>::threads, Shared<d, warpgroups>::bytes,
         map_of<QTile<d, warpgroups>>(f, "Q", x.Q, packed), map_of<KVTile<d>>(f, "K", x.K, packed),
         map_of<KVTile<d>>(f, "V", x.V, packed), x.O, x.L, drawn, x.sizes, order,
         static_cast<int>(f.problem.d), policy);
}

}  // namespace
}  // namespace flashladder::stage_82
