#pragma once
// How a stage makes the policy of stage 75. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_75 {
namespace {

/// The policy of a problem that has a softcap, on top of `base`.
template <class Base>
Softcap<Base> softcap_of(const Problem& p, const Base& base) {
  constexpr float log2_e = 1.4426950408889634f;
  return {base, p.softcap, 1 / p.softcap, 2 * log2_e / p.softcap};
}

/// Calls `body` with the policy of a problem, on top of `base`; without a softcap that is `base`.
template <class Base, class Body>
void with_softcap(const Problem& p, const Base& base, Body body) {
  if (p.softcap == 0) return body(base);
  body(softcap_of(p, base));
}

}  // namespace
}  // namespace flashladder::stage_75
