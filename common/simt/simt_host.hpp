#pragma once
// What starts kernels includes this: the words of simt.hpp, and those of the host.
#include "common/simt/simt.hpp"
#if defined(__CUDACC__)
#include "common/simt/device_host.hpp"
#else
#include "common/simt/launch.hpp"
#endif

namespace flashladder {

using simt::DeviceBuffer;
using simt::launch;
using simt::launch_clusters;
using simt::launch_dependent;
using simt::Uncounted;

}  // namespace flashladder
