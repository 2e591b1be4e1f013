#pragma once
// How a stage launches the kernels of stage 71 with a policy of its own. It includes kernel.hpp before: who
// tries a wrong kernel has another one.
#include "common/kernel/host.hpp"
#include "stages/38_tuned_backward/table.hpp"

namespace flashladder::stage_71 {
namespace {

using tiles_38::Row, tiles_38::table;

/// Launches nothing.
struct NoMore {
  void operator()(const auto&, const ExtraBuffer<f32>&, int, const auto&, int) const {}
};

/// Starts what goes before and after a kernel whose blocks add to dQ_sum, and calls `start_kernel` between
/// them, with the buffers of the pass, D, L2 and dQ_sum, [batch, q_heads, padded_Nq] and in tiles of Br
/// rows, and padded_Nq. Then `more` is called, with the buffers, D and padded_Nq, where the sequences lie,
/// and Br: it launches what the gradients of a policy's own tensors take.
template <class T, int d, class Sequences, class StartKernel, class More>
void start_around(const Backward& f, const Sequences& sequences, int Br, StartKernel start_kernel,
                  More more) {
  const BackwardBuffers<T> x(f);
  const unsigned heads = x.heads, batch = x.batch;
  const int padded_Nq = Br * sequences.blocks(f.problem.Nq, Br);  // of whole tiles
  ExtraBuffer D(f, "D", heads * batch * std::int64_t{padded_Nq}), L2(f, "L2", D.elements()),
      dQ_sum(f, "dQ_sum", D.elements() * d);
  launch("prepare", prepare<T, Sequences, d>,
         dim3(tiles(padded_Nq, helpers / (d % 64 == 0 ? 8 : 4)), heads, batch), helpers, 0, x.O, x.dO, x.L,
         D, L2, dQ_sum, x.sizes, padded_Nq, sequences, Br);
  start_kernel(x, D, L2, dQ_sum, padded_Nq);
  launch("convert", convert<T, Sequences, d>,
         dim3(tiles(tiles(Sequences::packed ? padded_Nq : f.problem.Nq, 16) * std::int64_t{d}, helpers),
              heads, batch),
         helpers, 0, dQ_sum, x.dQ, x.sizes, padded_Nq, sequences, Br);
  more(x, D, padded_Nq, sequences, Br);
}

/// Starts `kernel`, one of stage 71 for the tile of `row` and d columns, with a policy and `shared_bytes`
/// of shared memory, and what goes before and after it, as start_around does.
template <class T, int d, class Kernel, class Policy, class More>
void start(const Backward& f, const Row& row, Kernel kernel, std::size_t shared_bytes, const Policy& policy,
           More more) {
  const int Br = row.tile.Br, Bc = row.tile.Bc;
  const auto start_kernel = [&](const BackwardBuffers<T>& x, ExtraBuffer<f32>& D, ExtraBuffer<f32>& L2,
                                ExtraBuffer<f32>& dQ_sum, int padded_Nq) {
    const unsigned kv_heads = x.kv_heads, batch = x.batch, Tc = policy.sequences().blocks(f.problem.Nk, Bc);
    launch("fa2_backward", kernel, policy.causal ? dim3(kv_heads, Tc, batch) : dim3(Tc, kv_heads, batch),
           32 * row.tile.warps, shared_bytes, x.Q, x.K, x.V, x.dO, D, L2, dQ_sum, x.dK, x.dV, x.sizes,
           padded_Nq, policy);
  };
  start_around<T, d>(f, policy.sequences(), Br, start_kernel, more);
}

/// The backward pass under a policy, with the tile of a row of stage 38's table, which `chosen` has as a
/// compile-time constant; and `more` as start() calls it.
template <class Chosen, class Policy, class More = NoMore>
void backward_with(const Backward& f, Chosen chosen, const Policy& policy, More more = {}) {
  constexpr Row row = chosen;
  constexpr auto tile = row.tile;
  static_assert(!Policy::skips_tiles ||
                    (stage_70::skipped_block % tile.Br == 0 && stage_70::skipped_block % tile.Bc == 0),
                "a tile is part of one block that is skipped or not");
  using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
  start<T, row.d>(f, row,
                  fa2_backward<T, Policy, row.d, tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.share,
                               tile.step, tile.unroll>,
                  Shared<row.d, tile.Br, tile.Bc, tile.num_buffers, tile.share>::bytes, policy, more);
}

}  // namespace
}  // namespace flashladder::stage_71
