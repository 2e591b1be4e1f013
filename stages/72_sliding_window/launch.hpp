#pragma once
// How a stage makes the policy of stage 72. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include <algorithm>

#include "common/attention/problem.hpp"

namespace flashladder::stage_72 {
namespace {

/// The policy of a problem's window and mask. No row sees more than all keys, whatever its window.
SlidingWindow window_of(const Problem& p) {
  const auto side = [&](std::int64_t keys) { return static_cast<int>(std::min(keys, p.Nq + p.Nk)); };
  return {{}, side(p.window.left), p.causal ? 0 : side(p.window.right)};
}

}  // namespace
}  // namespace flashladder::stage_72
