#pragma once
// How a stage makes the policies of stage 76. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include <cmath>
#include <cstdint>

#include "common/kernel/host.hpp"

namespace flashladder::stage_76 {
namespace {

/// Calls `body` with the policy of a call, on top of `base`; without ALiBi all slopes are 0.
template <class Call, class Base, class Body>
void with_alibi(const Call& f, const Base& base, Body body) {
  const DeviceBuffer<f32> slopes = view_if_given<f32>(f, "slopes");
  body(Alibi<Base>{base, slopes, f.problem.alibi});
}

/// Over a smaller one numbers of a bias do not fit into fp32.
constexpr float least_scale_of_bias = 1e-30f;

/// Makes dbias 0, where there is one: the kernels add to it.
inline void clear_gradient(const Backward& f) {
  const DeviceBuffer<f32> dbias = view_if_given<f32>(f, "dbias");
  if (dbias.elements() > 0)
    launch("clear", clear, dim3(tiles(dbias.elements(), clear_elements)), clear_threads, 0, dbias,
           dbias.elements());
}

/// Calls `body` with the policy of a call, on top of `base`.
template <class Call, class Base, class Body>
void with_bias(const Call& f, const Base& base, Body body) {
  const Problem& p = f.problem;
  const DeviceBuffer<f32> bias = view_if_given<f32>(f, "bias"), dbias = view_if_given<f32>(f, "dbias");
  const std::int64_t row = p.Nk, head = p.bias_rows * row;
  const bool in_pairs = p.Nk % 2 == 0 && reinterpret_cast<std::uintptr_t>(f.bias.data) % 8 == 0;
  const float scale = p.softmax_scale();  // forward, its sign has been moved into Q
  if (p.has_bias() && std::abs(scale) < least_scale_of_bias)
    throw UsageError(
        "a bias is divided by the scale, and the scale is too small for that: give one of at least 1e-30");
  body(Bias<Base>{base, bias, dbias, p.bias_batch == 1 ? 0 : p.bias_heads * head,
                  p.bias_heads == 1 ? 0 : head, p.bias_rows == 1 ? 0 : row, p.has_bias(), in_pairs,
                  1 / (Call::pass == Pass::forward ? std::abs(scale) : scale)});
}

}  // namespace
}  // namespace flashladder::stage_76
