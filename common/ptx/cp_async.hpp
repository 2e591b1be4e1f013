#pragma once
// cp.async: copies from global to shared memory that arrive while the thread goes on. (PTX ISA, data
// movement instructions, cp.async.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

/// Begins to copy 16 bytes; where not `valid`, to write 16 bytes of zeros, reading nothing.
template <class T>
__device__ __forceinline__ void cp_async_16B(T* to, const T* from, bool valid = true) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// As cp_async_16B, of 4 bytes, which may begin at any multiple of 4.
template <class T>
__device__ __forceinline__ void cp_async_4B(T* to, const T* from, bool valid = true) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}

/// Makes a group of the thread's copies since the last group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most the N youngest groups of the thread are under way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

namespace simt {

/// Begins a copy of `bytes` bytes: the destination is NaN until it is waited for.
void issue_copy(SharedArray* array, std::byte* to, GlobalBuffer* buffer, std::int64_t byte, int bytes,
                bool valid, Where where);
/// Ends the group of copies begun since the last one.
void commit_copies();
/// Lets all but the `pending` youngest groups arrive.
void wait_for_copies(std::size_t pending);

}  // namespace simt

namespace simt {

/// A copy of `bytes` bytes; where not `valid`, of as many zeros.
template <int bytes, class T>
void copy_async(smem<T> to, gmem<const T> from, bool valid, Where where) {
  constexpr int count = bytes / sizeof(T);
  T* data = to.template find<count>(0, where);
  if (valid) gmem<const T>::template check<count>(from.buffer(), from.offset(), where);
  issue_copy(to.array(), reinterpret_cast<std::byte*>(data), from.buffer(),
             from.offset() * static_cast<std::int64_t>(sizeof(T)), bytes, valid, where);
}

}  // namespace simt

/// Begins to copy 16 bytes; where not `valid`, to write 16 bytes of zeros, reading nothing.
template <class T>
void cp_async_16B(simt::smem<T> to, simt::gmem<const std::type_identity_t<T>> from, bool valid = true,
                  simt::Where where = simt::Where::here()) {
  simt::copy_async<16>(to, from, valid, where);
}

/// As cp_async_16B, of 4 bytes, which may begin at any multiple of 4.
template <class T>
void cp_async_4B(simt::smem<T> to, simt::gmem<const std::type_identity_t<T>> from, bool valid = true,
                 simt::Where where = simt::Where::here()) {
  simt::copy_async<4>(to, from, valid, where);
}

/// Makes a group of the thread's copies since the last group.
inline void cp_async_commit() {
  simt::commit_copies();
}

/// Waits until at most the N youngest groups of the thread are under way.
template <int N>
void cp_async_wait() {
  simt::wait_for_copies(N);
}

#endif

}  // namespace flashladder
