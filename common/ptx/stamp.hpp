#pragma once
// Clock stamps: when the warps of a launch's first block came to what they do. A build of its own takes
// them (FLASHLADDER_STAMPS; bench/measure/stamps.py makes it); in all others stamp() is nothing.
#include "common/simt/std.hpp"

namespace flashladder {

/// What a warp comes to: the steps of a trace (common/simt/trace.hpp) that are instructions of common/ptx,
/// and two more.
enum class Stamp : std::uint32_t {
  none,             ///< Where there is no stamp.
  mbarrier_arrive,  ///< As in a trace,
  mbarrier_wait,    ///< likewise,
  load,             ///< likewise,
  commit,           ///< likewise,
  wait_groups,      ///< likewise,
  barrier,          ///< likewise: a named one,
  barrier_arrive,   ///< likewise.
  fence,            ///< A wgmma_fence, behind which products begin.
  goes_on           ///< The end of the wait before it.
};

/// A stamp, as it lies in memory: it is written in one access.
struct alignas(8) Stamped {
  std::uint32_t clock;  ///< Of the SM, the last 32 bits.
  Stamp what;           ///< What the warp came to.
};

constexpr unsigned stamp_warps = 32;       ///< Of a block, that are stamped.
constexpr unsigned stamp_slots = 1 << 16;  ///< Of a warp: the clocks of a block, by fours.

#if defined(__CUDACC__) && defined(FLASHLADDER_STAMPS)

/// By warp and by time: a stamp's place is its clock, so that no warp needs to count its stamps. It holds
/// 2^18 clocks.
__device__ Stamped stamps[stamp_warps][stamp_slots];

/// The warp is here now. All its lanes write the same to the same place. It has no branch, behind which the
/// compiler would order wgmmas in another way.
__device__ __forceinline__ void stamp(Stamp what) {
  asm volatile(
      "{\n"
      ".reg .pred first;\n"
      ".reg .u32 now, place;\n"
      ".reg .u64 at;\n"
      "setp.eq.u32 first, %0, 0;\n"
      "mov.u32 now, %%clock;\n"
      "and.b32 place, now, %2;\n"
      "mad.wide.u32 at, place, 2, %1;\n"  // 8 bytes for each 4 clocks
      "@first st.global.v2.u32 [at], {now, %3};\n"
      "}" ::"r"(blockIdx.x + blockIdx.y + blockIdx.z),
      "l"(stamps[threadIdx.x / 32]), "n"(4 * stamp_slots - 4), "r"(static_cast<std::uint32_t>(what))
      : "memory");
}

/// Copies all stamps to the host, and forgets them. Returns what the GPU reports, nullptr where all is
/// well.
/// @param into  [stamp_warps][stamp_slots]
inline const char* take_stamps(Stamped* into) {
  void* place = nullptr;
  cudaError_t status = cudaMemcpyFromSymbol(into, stamps, sizeof(stamps));  // waits for the kernels
  if (status == cudaSuccess) status = cudaGetSymbolAddress(&place, stamps);
  if (status == cudaSuccess) status = cudaMemset(place, 0, sizeof(stamps));
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

#elif defined(__CUDACC__)

/// The warp is here now.
__device__ __forceinline__ void stamp(Stamp) {}

#endif

}  // namespace flashladder
