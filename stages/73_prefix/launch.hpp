#pragma once
// How a stage makes the policy of stage 73. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/attention/problem.hpp"

namespace flashladder::stage_73 {
namespace {

/// The policy of a problem's prefix, on top of `base`; without a prefix that of `base`.
template <class Base>
Prefix<Base> prefix_of(const Problem& p, const Base& base) {
  return {base, static_cast<int>(p.mask().prefix)};
}

}  // namespace
}  // namespace flashladder::stage_73
