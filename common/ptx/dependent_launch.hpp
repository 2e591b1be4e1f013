#pragma once
// griddepcontrol: kernels that are launched by launch_dependent() may begin before the kernel before them
// has ended. (PTX ISA, parallel synchronization instructions, griddepcontrol; CUDA C++ Programming Guide,
// programmatic dependent launch.)
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// Lets the kernel behind this one begin, if it was launched by launch_dependent(), once all blocks have
/// said so or have ended, and there is room for its blocks. It says nothing of what this kernel writes.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Waits until the kernel before this one has ended, and what it has written is there: for this thread, and
/// for those that learn of it by a barrier. Without launch_dependent() it has nothing to wait for.
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// `p`, to read behind the wait what the kernel before has written. nvcc takes what a kernel's pointer to
/// const points to for unchanged as long as the kernel runs: without this it may read it before the wait.
template <class T>
__device__ __forceinline__ const T* behind_wait(const T* p) {
  asm volatile("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
  return p;
}

}  // namespace for_cuda

#else

namespace simt {

/// Executes grid_dependency_wait.
void wait_for_grid();

}  // namespace simt

inline namespace for_emulator {

/// Lets the kernel behind this one begin, if it was launched by launch_dependent(). The emulator runs one
/// after the other all the same, and takes what is not waited for as not written.
inline void launch_dependents() {}

/// Waits until the kernel before this one has ended, and what it has written is there: for this thread, and
/// for those that learn of it by a barrier. Without launch_dependent() it has nothing to wait for.
inline void grid_dependency_wait() {
  simt::wait_for_grid();
}

/// `p`, to read behind the wait what the kernel before has written.
template <class T>
gmem<const T> behind_wait(gmem<const T> p) {
  return p;
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
