#pragma once
// The one header that a kernel includes; what starts it includes simt_host.hpp. Under nvcc its words are
// CUDA's, or one instruction each; for any other compiler they are the emulator's. README.md beside it
// explains each word.
#include "common/simt/std.hpp"
#if defined(__CUDACC__)
#include "common/simt/device.hpp"
#else
#include "common/simt/collectives.hpp"
#include "common/simt/cuda_words.hpp"
#include "common/simt/emulator.hpp"
#include "common/simt/half.hpp"
#include "common/simt/memory.hpp"
#include "common/simt/scalar.hpp"

#define threadIdx (::flashladder::simt::running.thread->index)
#define blockIdx (::flashladder::simt::running.thread->block->index)
#define blockDim (::flashladder::simt::running.cluster->launch->block)
#define gridDim (::flashladder::simt::running.cluster->launch->grid)
#endif

namespace flashladder {

using simt::atomic_add;
using simt::bf16;
using simt::count_tile;
using simt::draw;
using simt::dynamic_smem;
using simt::dynamic_tile;
using simt::f16;
using simt::f32;
using simt::gmem;
using simt::load2;
using simt::load4;
using simt::mac;
using simt::smem;
using simt::smem_array;
using simt::smem_tile;
using simt::store4;

}  // namespace flashladder
