#pragma once
// How a stage makes the policy of stage 74. It includes policy.hpp before: who tries a wrong policy has
// another one.
#include "common/kernel/host.hpp"

namespace flashladder::stage_74 {
namespace {

/// Calls `body` with the policy of a call, on top of `base`.
template <class Call, class Base, class Body>
void with_documents(const Call& f, const Base& base, Body body) {
  const DeviceBuffer<int> cu_q = view_if_given<int>(f, "cu_seqlens_q"),
                          cu_k = view_if_given<int>(f, "cu_seqlens_k"),
                          used_k = view_if_given<int>(f, "seqused_k");
  const Packing& packing = f.problem.packing;
  body(Documents<Base>{base,
                       {static_cast<int>(packing.sequences), cu_q, cu_k, packing.partly_used, used_k}});
}

/// Throws UsageError where a problem has keys without gradients.
inline void require_all_used(const Problem& p) {
  if (!p.packing.partly_used) return;
  throw UsageError(
      "seqused_k is for the forward pass alone: the backward pass has no gradient for keys that are not "
      "used; pack the used keys alone");
}

}  // namespace
}  // namespace flashladder::stage_74
