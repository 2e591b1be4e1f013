#pragma once
// How a stage makes the policy of stage 79. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_79 {
namespace {

/// Calls `body` with the policy of a call, on top of `base`; without a map nothing is skipped.
template <class Call, class Base, class Body>
void with_block_map(const Call& f, const Base& base, Body body) {
  static_assert(skipped_block == BlockMap::size);
  const BlockMap& map = f.problem.block_map;
  const DeviceBuffer<int> live = view_if_given<int>(f, "block_map");
  const std::int64_t head = map.rows * map.keys;
  body(LiveBlocks<Base>{base, live, map.batch == 1 ? 0 : map.heads * head, map.heads == 1 ? 0 : head,
                        static_cast<int>(map.rows), static_cast<int>(map.keys)});
}

}  // namespace
}  // namespace flashladder::stage_79
