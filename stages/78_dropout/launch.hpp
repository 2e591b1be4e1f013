#pragma once
// How a stage makes the policy of stage 78. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_78 {
namespace {

/// The policy of a problem, on top of `base`; without dropout all stay.
template <class Base>
Dropout<Base> dropout_of(const Problem& p, const Base& base) {
  const int kept = p.dropout.kept();
  return {base, p.dropout.seed, kept, 256.f / static_cast<float>(kept)};
}

}  // namespace
}  // namespace flashladder::stage_78
