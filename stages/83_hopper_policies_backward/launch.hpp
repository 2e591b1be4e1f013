#pragma once
// How stage 83 launches its kernel. The stage includes kernel.hpp before this file: a test of a wrong
// kernel has another one in its place.
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"
#include "stages/71_policies_backward/launch.hpp"

namespace flashladder::stage_83 {
namespace {

/// How many key/value heads come together where the first keys come first: the most that divide all, and of
/// which Q, dO and dQ_sum take at most three quarters of L2, or one.
inline unsigned heads_of_section(const Problem& p, int d) {
  const std::int64_t bytes = 8 * (p.q_heads / p.kv_heads) * p.Nq * d;  // of one
  std::int64_t heads = p.kv_heads;
  while (heads > 1 && (p.kv_heads % heads != 0 || 4 * heads * bytes > 3 * L2_bytes())) --heads;
  return static_cast<unsigned>(heads);
}

/// Starts the kernel for d columns with a policy, and what goes before and after it.
template <class T, int d, class Kernel, class Policy>
void start(const Backward& f, Kernel kernel, const Policy& policy) {
  constexpr int Br = Tile<d>::Br;
  const auto& sequences = policy.sequences();
  const bool packed = sequences.given();
  const auto start_kernel = [&](const BackwardBuffers<T>& x, ExtraBuffer<f32>& D, ExtraBuffer<f32>& L2,
                                ExtraBuffer<f32>& dQ_sum, int padded_Nq) {
    const unsigned heads = x.heads, kv_heads = x.kv_heads, batch = x.batch,
                   Tc = sequences.blocks(f.problem.Nk, Tile<d>::Bc),
                   section = policy.causal ? heads_of_section(f.problem, d) : kv_heads,
                   sections = kv_heads / section;
    launch("wgmma_backward", kernel,
           policy.causal ? dim3(section, Tc, batch * sections) : dim3(Tc, kv_heads, batch),
           Tile<d>::threads, Shared<d>::bytes, map_of<QTile<d>>(f, "Q", x.Q, packed),
           map_of<KVTile<d>>(f, "K", x.K, packed), map_of<KVTile<d>>(f, "V", x.V, packed),
           map_of<QTile<d>>(f, "dO", x.dO, packed), map_of_rows("L2", L2, batch, heads, padded_Nq, Br),
           map_of_rows("D", D, batch, heads, padded_Nq, Br), dQ_sum, x.dK, x.dV, x.sizes, padded_Nq,
           static_cast<int>(sections), policy);
  };
  stage_71::start_around<T, d>(f, sequences, Br, start_kernel, stage_77::SinkGradient{f});
}

}  // namespace
}  // namespace flashladder::stage_83
