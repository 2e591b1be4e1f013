#pragma once
// How a stage makes the policy of stage 77. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_77 {
namespace {

/// Calls `body` with the policy of a call, on top of `base`; without sinks all are -infinity.
template <class Base, class Body>
void with_sinks(const Forward& f, const Base& base, Body body) {
  const DeviceBuffer<f32> sinks = view_if_given<f32>(f, "sinks");
  body(Sinks<Base>{base, sinks, f.problem.sinks});
}

/// What the backward pass computes of the sinks: stage 71 calls it when D is there.
struct SinkGradient {
  const Backward& f;

  template <class Buffers, class Sequences>
  void operator()(const Buffers& x, const ExtraBuffer<f32>& D, int padded_Nq, const Sequences& sequences,
                  int Br) const {
    if (!f.problem.sinks) return;
    const DeviceBuffer<f32> sinks = view_of<f32>(f, "sinks"), dsinks = view_of<f32>(f, "dsinks");
    launch("sink_gradient", sink_gradient<Sequences>, dim3(x.heads), sink_threads, 0, sinks, x.L, D, dsinks,
           x.sizes, x.batch, padded_Nq, sequences, Br);
  }
};

}  // namespace
}  // namespace flashladder::stage_77
