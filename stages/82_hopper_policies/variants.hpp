#pragma once
// How stages 82 and 83 make a policy of all variants for the emulator, as stage 80 does, but without a
// block map. A stage includes their policy.hpp and launch.hpp before this file: a test of a wrong policy
// has another one in its place.
#include "common/kernel/host.hpp"

namespace flashladder::stage_82 {
namespace {

/// Calls `body` with the policy of a call: a window, and on top of it a prefix and all but the sinks, for
/// which only the forward pass asks.
template <class Call, class Body>
void with_all(const Call& f, Body body) {
  const auto masked = stage_73::prefix_of(f.problem, stage_72::window_of(f.problem));
  stage_76::with_bias(f, masked, [&](const auto& bias) {
    const stage_80::SoftcapIfAny<std::decay_t<decltype(bias)>> softcap{
        bias, stage_75::softcap_of(f.problem, stage_70::Plain<true>())};
    stage_76::with_alibi(f, softcap, [&](const auto& alibi) {
      stage_78::with_any_dropout(f, alibi,
                                 [&](const auto& dropout) { stage_74::with_documents(f, dropout, body); });
    });
  });
}

}  // namespace
}  // namespace flashladder::stage_82
