#pragma once
// What device code takes of the standard library: sizes of integers, traits of types, INFINITY. Compiled at
// run time, by NVRTC, there is no standard library; CUDA's own has the same under another name.
#if defined(__CUDACC_RTC__)
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/type_traits>

namespace std {
using namespace cuda::std;
}

#ifndef INFINITY
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
#endif
#else
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#endif
