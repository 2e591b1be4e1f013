#pragma once
// How long the L2 cache is to keep what an instruction reads or writes. (PTX ISA, createpolicy; cache
// eviction priority hints.)
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/mma.hpp"
#include "common/ptx/tma.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// What an instruction says to the L2 cache.
using cache_policy = unsigned long long;

/// What is read or written is not to stay: it makes room before all else does.
__device__ __forceinline__ cache_policy evict_first() {
  cache_policy policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// What is read or written is to stay: all else makes room before it does.
__device__ __forceinline__ cache_policy evict_last() {
  cache_policy policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// store4, under a policy.
__device__ __forceinline__ void store4(float* p, float4 value, cache_policy policy) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w), "l"(policy)
               : "memory");
}

/// store_16B of eight numbers, under a policy.
template <class T>
__device__ __forceinline__ void store_16B(T* to, const std::uint32_t (&words)[4], bool valid,
                                          cache_policy policy) {
  if (valid) {
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3]), "l"(policy)
                 : "memory");
  }
}

/// atomic_add4, under a policy; on Hopper, as tma_load.
__device__ __forceinline__ void atomic_add4(float* p, float4 value, cache_policy policy) {
  asm volatile("red.global.add.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w), "l"(policy)
               : "memory");
}

/// tma_load, under a policy.
template <class T>
__device__ __forceinline__ void tma_load(T* to, const tensor_map& map, mbarrier* bar, int c0, int c1,
                                         int c2, int c3, cache_policy policy) {
  stamp(Stamp::load);
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(bar))), "r"(c0), "r"(c1), "r"(c2),
      "r"(c3), "l"(policy)
      : "memory");
}

}  // namespace for_cuda

#else

inline namespace for_emulator {

/// What an instruction says to the L2 cache, which is not emulated: nothing.
struct cache_policy {};

/// What is read or written is not to stay: it makes room before all else does.
inline cache_policy evict_first() {
  return {};
}

/// What is read or written is to stay: all else makes room before it does.
inline cache_policy evict_last() {
  return {};
}

/// store4, under a policy.
inline void store4(simt::gmem<f32> p, float4 value, cache_policy, simt::Where where = simt::Where::here()) {
  store4(p, value, where);
}

/// store_16B of eight numbers, under a policy.
template <class T>
void store_16B(simt::gmem<T> to, const std::uint32_t (&words)[4], bool valid, cache_policy,
               simt::Where where = simt::Where::here()) {
  store_16B<T>(to, words, valid, where);
}

/// atomic_add4, under a policy; on Hopper, as tma_load.
inline void atomic_add4(simt::gmem<f32> p, float4 value, cache_policy,
                        simt::Where where = simt::Where::here()) {
  atomic_add4(p, value, where);
}

/// tma_load, under a policy.
template <class T>
void tma_load(simt::smem<T> to, const tensor_map& map, simt::smem<mbarrier> bar, int c0, int c1, int c2,
              int c3, cache_policy, simt::Where where = simt::Where::here()) {
  tma_load<T>(to, map, bar, c0, c1, c2, c3, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
