#pragma once
// elect.sync: one lane of a warp acts for all. (PTX ISA, parallel synchronization and communication
// instructions, elect.sync.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)
inline namespace for_cuda {
/// True in one lane of the warp, always the same one, and false in the others. All 32 lanes execute it. It
/// orders no accesses to memory.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}
}  // namespace for_cuda
#else
inline namespace for_emulator {
/// True in one lane of the warp, here lane 0, and false in the others. All 32 lanes execute it. It orders
/// no accesses to memory.
inline bool elect_one(simt::Where where = simt::Where::here()) {
  int nothing = 0;
  simt::collective(~0u, "elect_one", where, nothing, [](int* const*) {});
  return simt::running.thread->lane == 0;
}
}  // namespace for_emulator
#endif

}  // namespace flashladder
