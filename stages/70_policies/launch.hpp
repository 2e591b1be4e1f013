#pragma once
// How a stage launches the kernel of stage 70 with a policy of its own. It includes kernel.hpp before: who
// tries a wrong kernel has another one.
#include "common/kernel/host.hpp"
#include "stages/29_tuned/table.hpp"

namespace flashladder::stage_70 {
namespace {

using tiles_29::Row, tiles_29::table;

/// Starts a kernel of stage 70 for the tile of `row`, with a policy and `shared_bytes` of shared memory.
template <class T, class Kernel, class Policy>
void start(const Forward& f, const Row& row, Kernel kernel, std::size_t shared_bytes,
           const Policy& policy) {
  const ForwardBuffers<T> x(f);
  const unsigned heads = x.heads, batch = x.batch,
                 Tr = policy.sequences().blocks(f.problem.Nq, row.tile.Br);
  launch("fa2_forward", kernel, policy.causal ? dim3(heads, batch, Tr) : dim3(Tr, heads, batch),
         32 * row.tile.warps, shared_bytes, x.Q, x.K, x.V, x.O, x.L, x.sizes, static_cast<int>(f.problem.d),
         policy);
}

/// The forward pass under a policy, with the tile of a row of stage 29's table, which `chosen` has as a
/// compile-time constant.
template <class Chosen, class Policy>
void forward_with(const Forward& f, Chosen chosen, const Policy& policy) {
  constexpr Row row = chosen;
  constexpr auto tile = row.tile;
  static_assert(!Policy::skips_tiles || (skipped_block % tile.Br == 0 && skipped_block % tile.Bc == 0),
                "a tile is part of one block that is skipped or not");
  using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
  start<T>(f, row,
           fa2_forward<T, Policy, row.d, tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.unroll>,
           Shared<row.d, tile.Br, tile.Bc, tile.num_buffers>::bytes, policy);
}

}  // namespace
}  // namespace flashladder::stage_70
