#pragma once
#include <span>

namespace flashladder {

/// A header of the device, which the library carries with it for NVRTC.
struct DeviceHeader {
  const char* name;  ///< As it is included.
  const char* text;  ///< All of it.
};

/// Those of all kernels that are compiled at run time. CMake writes them into the library.
std::span<const DeviceHeader> device_headers();

}  // namespace flashladder
