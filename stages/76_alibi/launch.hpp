#pragma once
// How a stage makes the policy of stage 76. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_76 {
namespace {

/// Calls `body` with the policy of a call, on top of `base`; without ALiBi all slopes are 0.
template <class Call, class Base, class Body>
void with_alibi(const Call& f, const Base& base, Body body) {
  const DeviceBuffer<f32> slopes = view_if_given<f32>(f, "slopes");
  body(Alibi<Base>{base, slopes, f.problem.alibi});
}

}  // namespace
}  // namespace flashladder::stage_76
