#pragma once
// Threads use shared memory by another way, the generic proxy, than the units that work beside them, TMA
// and the tensor cores of wgmma, which use the async proxy. (PTX ISA, memory consistency model, proxies.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// Makes what this thread has written to shared memory, or has copied there by cp.async, visible to the
/// units. It stands behind the writes and before the barrier at which others learn of them.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace for_cuda

#else

namespace simt {

/// Executes fence_proxy_async.
void fence_proxy();

}  // namespace simt

inline namespace for_emulator {

/// Makes what this thread has written to shared memory, or has copied there by cp.async, visible to the
/// units. It stands behind the writes and before the barrier at which others learn of them.
inline void fence_proxy_async() {
  simt::fence_proxy();
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
