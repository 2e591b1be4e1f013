#pragma once
// setmaxnreg: a warpgroup, four warps in a row, gives registers back, and another one takes them. (PTX ISA,
// miscellaneous instructions, setmaxnreg; from sm_90a on.)
//
// What is given back goes to a pool of the block, empty at first, and what is taken comes from there. The
// kernel says `__launch_bounds__(threads, 1)`: without the 1 ptxas does not know what a thread has at
// launch, and leaves the instructions out (C7508). With it a thread has, by ptxas 13.0, as many registers
// as the 65536 of a multiprocessor leave each, threads in whole warpgroups, rounded down to a multiple of
// 8, and at most 256: 168 of 384 threads, 128 of 512, 96 of 640. (ptxas then reports 255 where it is 256: a
// program cannot name more.) Where the largest registers_up of the kernel asks for less than that, it is as
// many as that one asks for.
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// Each thread of the warpgroup keeps R registers, a multiple of 8 from 24 to 256 and no more than it has,
/// and gives the others back. All four warps execute it, and synchronise before the next one.
template <int R>
__device__ __forceinline__ void registers_down() {
  static_assert(R >= 24 && R <= 256 && R % 8 == 0, "give a multiple of 8 from 24 to 256");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
}

/// Each thread of the warpgroup takes registers until it has R, a multiple of 8 from 24 to 256 and no fewer
/// than it has; waits until others have given enough back. All four warps execute it, and synchronise
/// before the next one.
template <int R>
__device__ __forceinline__ void registers_up() {
  static_assert(R >= 24 && R <= 256 && R % 8 == 0, "give a multiple of 8 from 24 to 256");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
}

}  // namespace for_cuda

#else

namespace simt {

/// Executes registers_up, or registers_down.
void change_registers(int registers, bool up, Where where);

}  // namespace simt

inline namespace for_emulator {

/// Each thread of the warpgroup keeps R registers, a multiple of 8 from 24 to 256 and no more than it has,
/// and gives the others back. All four warps execute it, and synchronise before the next one.
template <int R>
void registers_down(simt::Where where = simt::Where::here()) {
  static_assert(R >= 24 && R <= 256 && R % 8 == 0, "give a multiple of 8 from 24 to 256");
  simt::change_registers(R, false, where);
}

/// Each thread of the warpgroup takes registers until it has R, a multiple of 8 from 24 to 256 and no fewer
/// than it has; waits until others have given enough back. All four warps execute it, and synchronise
/// before the next one.
template <int R>
void registers_up(simt::Where where = simt::Where::here()) {
  static_assert(R >= 24 && R <= 256 && R % 8 == 0, "give a multiple of 8 from 24 to 256");
  simt::change_registers(R, true, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
