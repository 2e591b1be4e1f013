#pragma once
// mbarriers: barriers in shared memory that threads need not wait at, and that copies complete too. (PTX
// ISA, parallel synchronization instructions, mbarrier.)
//
// An mbarrier goes through phases, 0, 1, 2 and so on. A phase ends when as many arrivals have come as
// mbarrier_init said, and as many bytes as were announced for it; then the next one begins, with the same
// number of arrivals to come. A thread that waits names the *parity* of a phase, its last bit, and goes on
// once that phase has ended: while phase n is under way, a wait for the parity of n waits, and one for the
// other parity, that of the phase before, does not. So a wait for parity 1 passes at once on a new
// mbarrier.
#include "common/ptx/stamp.hpp"
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// An mbarrier, an element of a shared array: `auto&& full = dynamic_tile<mbarrier, 2, 1,
/// "full">(offset);`.
struct mbarrier {
  unsigned long long state;  ///< For the hardware alone.
};

/// Begins phase 0 of an mbarrier whose phases take `arrivals` arrivals, 1 to 2^20 - 1. Other threads may
/// use it behind a barrier, and copies behind fence_mbarrier_init() too.
__device__ __forceinline__ void mbarrier_init(mbarrier* bar, int arrivals) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
}

/// Makes what this thread has initialised visible to the units that copy, and to other blocks of the
/// cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival, and no waiting: what this thread did before it has happened for those who wait for the
/// phase.
__device__ __forceinline__ void mbarrier_arrive(mbarrier* bar) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  stamp(Stamp::mbarrier_arrive);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}

/// Waits until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(mbarrier* bar, int parity) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  stamp(Stamp::mbarrier_wait);
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}" ::"r"(address),
      "r"(parity)
      : "memory");
  stamp(Stamp::goes_on);
}

}  // namespace for_cuda

#else

namespace simt {

/// The mbarrier at a place, for an instruction. Fails where it is not initialised, or this thread cannot
/// know that it is.
Mbarrier& find_mbarrier(SharedArray* array, const std::byte* at, const char* word, Where where);
/// Ends the phase that is under way where nothing is missing any more.
void end_phase_if_complete(Mbarrier& bar);
/// Executes mbarrier_init.
void init_mbarrier(SharedArray* array, std::byte* at, int arrivals, Where where);
/// Executes fence_mbarrier_init.
void fence_mbarriers();
/// Fails where nothing makes visible to others, "the unit that copies", that it is initialised.
void require_fenced(const Mbarrier& bar, const char* others, Where where);
/// Fails where copies have begun that bring more bytes than its phase is told of.
void require_announced(const Mbarrier& bar);
/// Executes mbarrier_arrive.
void arrive_at_mbarrier(SharedArray* array, std::byte* at, Where where);
/// Executes mbarrier_wait.
void wait_at_mbarrier(SharedArray* array, std::byte* at, int parity, Where where);

}  // namespace simt

inline namespace for_emulator {

/// An mbarrier, an element of a shared array: `auto&& full = dynamic_tile<mbarrier, 2, 1,
/// "full">(offset);`.
struct mbarrier {
  std::uint64_t state;  ///< For the hardware alone.
};

/// Begins phase 0 of an mbarrier whose phases take `arrivals` arrivals, 1 to 2^20 - 1. Other threads may
/// use it behind a barrier, and copies behind fence_mbarrier_init() too.
inline void mbarrier_init(simt::smem<mbarrier> bar, int arrivals, simt::Where where = simt::Where::here()) {
  simt::init_mbarrier(bar.array(), reinterpret_cast<std::byte*>(bar.find<1>(0, where)), arrivals, where);
}

/// Makes what this thread has initialised visible to the units that copy, and to other blocks of the
/// cluster.
inline void fence_mbarrier_init() {
  simt::fence_mbarriers();
}

/// One arrival, and no waiting: what this thread did before it has happened for those who wait for the
/// phase.
inline void mbarrier_arrive(simt::smem<mbarrier> bar, simt::Where where = simt::Where::here()) {
  simt::arrive_at_mbarrier(bar.array(), reinterpret_cast<std::byte*>(bar.find<1>(0, where)), where);
}

/// Waits until the phase of this parity has ended.
inline void mbarrier_wait(simt::smem<mbarrier> bar, int parity, simt::Where where = simt::Where::here()) {
  simt::wait_at_mbarrier(bar.array(), reinterpret_cast<std::byte*>(bar.find<1>(0, where)), parity, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
