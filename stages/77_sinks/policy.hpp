#pragma once
// The policy of stage 77; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_77 {
namespace {

/// Each head has a score of its own beside those of its keys, on top of the policy Base.
template <class Base>
struct Sinks : Base {
  gmem<const f32> sinks;  // [q_heads]
  bool given;             // whether there are any

  struct Head : Base::Head {
    f32 its_sink;
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), given ? static_cast<f32>(sinks[h]) : f32(-INFINITY)};
  }

  static constexpr bool has_sink = true;
  __device__ __forceinline__ f32 sink(const Head& head) const { return head.its_sink; }
};

}  // namespace
}  // namespace flashladder::stage_77
