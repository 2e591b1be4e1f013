#pragma once
// What CUDA's own words mean to a host compiler. Only the emulator includes this file.
//
// Names that start with two underscores belong to the compiler and its library; these are the ones that
// CUDA itself takes, so that a kernel reads the same to both compilers.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
/// A shared array is an object that finds the block's memory when it is declared. The keyword `struct` lets
/// `__shared__ smem_array<...> P;` through and stops `__shared__ float p[32];`, which the emulator could
/// neither share nor check.
#define __shared__ struct

/// Sizes of a grid or a block; what is left out is 1.
struct dim3 {
  unsigned x;  ///< Fastest.
  unsigned y;  ///< Next.
  unsigned z;  ///< Slowest.
  /// Sizes along x, y and z.
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/// Where in a grid or a block something is.
struct uint3 {
  unsigned x;  ///< Fastest.
  unsigned y;  ///< Next.
  unsigned z;  ///< Slowest.
};
