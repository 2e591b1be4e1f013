#pragma once
// Kernels that are compiled when they are first asked for: by NVRTC, from the headers of the device, which
// the library carries with it. What was compiled is kept, for the next process on disk.
#include <string>
#include <typeinfo>

#ifdef __CUDACC__
#include "common/simt/simt_host.hpp"
#endif

namespace flashladder {

/// A kernel to compile: one of those that a template may become.
struct KernelSource {
  std::string text;  ///< What includes its headers, by their paths from the root of the repository.
  std::string name;  ///< "flashladder::stage_70::fa2_forward<flashladder::f16, ...>"
};

/// What was made of it.
struct MachineCode {
  std::string symbol;  ///< The kernel's name in it.
  std::string cubin;   ///< For one architecture.
};

/// Why no kernel can be compiled for a GPU of `architecture`, 90 for compute capability 9.0; empty where
/// kernels can.
std::string why_no_compiler(int architecture);

/// The machine code of a kernel: what was kept in folder_of_kernels(), or else what NVRTC makes of it,
/// which is then kept. No GPU is needed. Where the folder cannot be read or written nothing is kept. Throws
/// Error where there is no compiler, and where it does not take the kernel.
MachineCode compile_at_run_time(const KernelSource& source, int architecture);

/// How many times this process has called NVRTC for a kernel.
int compiled_at_run_time();

/// Where kernels are kept: FLASHLADDER_CACHE, $XDG_CACHE_HOME/flashladder or ~/.cache/flashladder; empty
/// where the environment has none of them.
std::string folder_of_kernels();

/// The kernel for this process, as the CUDA runtime takes it in a function's place. Throws Error as
/// compile_at_run_time, and where the GPU does not take it; what has failed once is not tried again.
const void* load_kernel(const KernelSource& source, int architecture);

/// How device code names a type whose std::type_info::name() this is: without the namespaces that have no
/// name.
std::string device_name(const char* mangled);
/// The same of type T.
template <class T>
std::string device_name() {
  return device_name(typeid(T).name());
}

#ifdef __CUDACC__
/// A kernel that can be launched.
struct LoadedKernel {
  const void* kernel;  ///< As load_kernel returns it.
};

/// What a kernel is given for an argument of launch(): for a buffer its pointer.
template <class T>
decltype(auto) parameter(const T& argument) {
  if constexpr (requires { argument.ptr(); }) {
    return argument.ptr();
  } else {
    return (argument);
  }
}

/// Starts a kernel on such a grid; `dependent`: by launch_dependent. Nothing here knows its parameters:
/// each argument must have exactly the type of its own, or, where the host has no name for that, a member
/// address(), which says where it is.
template <class... Arguments>
void start_loaded(bool dependent, const char* name, LoadedKernel loaded, dim3 grid, dim3 block,
                  std::size_t shared_bytes, const Arguments&... arguments) {
  const auto address = [](const auto& value) {
    if constexpr (requires { value.address(); }) {
      return const_cast<void*>(value.address());
    } else {
      return const_cast<void*>(static_cast<const void*>(&value));
    }
  };
  const auto start = [&](const auto&... values) {
    void* addresses[] = {address(values)...};
    return simt::start_kernel(1, dependent, loaded.kernel, grid, block, shared_bytes, addresses);
  };
  const auto require = [](cudaError_t status, const auto&... what) {
    if (status != cudaSuccess) (void)cudaGetLastError();  // reported here: the next launch must not find it
    simt::require(status, what...);
  };
  simt::require_grid(name, grid);
  require(cudaFuncSetAttribute(loaded.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "kernel ", name, " with ", std::to_string(shared_bytes), " bytes of dynamic shared memory");
  require(start(parameter(arguments)...), "kernel ", name);
}

/// As simt::launch, with the arguments of start_loaded.
template <class... Arguments>
void launch(const char* name, LoadedKernel loaded, dim3 grid, dim3 block, std::size_t shared_bytes,
            const Arguments&... arguments) {
  start_loaded(false, name, loaded, grid, block, shared_bytes, arguments...);
}

/// As simt::launch_dependent, with the arguments of start_loaded.
template <class... Arguments>
void launch_dependent(const char* name, LoadedKernel loaded, dim3 grid, dim3 block,
                      std::size_t shared_bytes, const Arguments&... arguments) {
  start_loaded(true, name, loaded, grid, block, shared_bytes, arguments...);
}
#endif

}  // namespace flashladder
