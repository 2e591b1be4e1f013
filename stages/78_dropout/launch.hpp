#pragma once
// How a stage makes the policy of stage 78. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_78 {
namespace {

/// Calls `body` with the policy of a call, on top of `base`, whether its seed is in memory or not; without
/// dropout all stay.
template <class Call, class Base, class Body>
void with_any_dropout(const Call& f, const Base& base, Body body) {
  const ::flashladder::Dropout& asked = f.problem.dropout;
  const DeviceBuffer<int> words = view_if_given<int>(f, "dropout_seed");
  const int kept = asked.kept();
  body(Dropout<Base, true>{base, asked.seed, asked.p != 0 && asked.seed_in_memory, words, kept,
                           256.f / static_cast<float>(kept)});
}

/// The same with a type for the one and for the other.
template <class Call, class Base, class Body>
void with_dropout(const Call& f, const Base& base, Body body) {
  with_any_dropout(f, base, [&](const Dropout<Base, true>& any) {
    if (any.in_memory) return body(any);
    body(Dropout<Base>{base, any.known_seed, false, any.words, any.kept, any.inverse});
  });
}

}  // namespace
}  // namespace flashladder::stage_78
