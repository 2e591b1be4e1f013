#pragma once
// Kernels include this too: no header of the host.

/// What a GPU calls as the host does.
#ifdef __CUDACC__
#define FLASHLADDER_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHLADDER_HOST_DEVICE inline
#endif
