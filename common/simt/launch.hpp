#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "common/simt/emulator.hpp"
#include "common/simt/memory.hpp"

// What the host side of a stage uses: device buffers and launch().

namespace flashladder::simt {

/// What a host holds for a device's T: float for f32, else T itself.
template <class T>
struct HostType {
  using Type = T;  ///< Itself.
};
/// f32 is a float to the host.
template <>
struct HostType<f32> {
  using Type = float;  ///< What f32 counts operations on.
};

/// Device memory with a name. Owned buffers start as NaN, as fresh device memory starts as anything.
template <class T>
class DeviceBuffer {
 public:
  using Host = typename HostType<T>::Type;  ///< What is uploaded and downloaded.

  /// Owns `elements` elements. Throws Error when there is not enough memory.
  DeviceBuffer(const std::string& name, std::int64_t elements)
      : buffer_(std::make_unique<GlobalBuffer>(name, elements, static_cast<std::int64_t>(sizeof(T)))) {}
  /// A view of `elements` elements of memory that the device can reach; on the emulator, any.
  static DeviceBuffer view(const std::string& name, Host* data, std::int64_t elements) {
    return DeviceBuffer(name, data, elements);
  }
  /// A view through which nothing must be written.
  static DeviceBuffer view(const std::string& name, const Host* data, std::int64_t elements) {
    return DeviceBuffer(name, const_cast<Host*>(data), elements);
  }
  /// As view, of memory that the ledger's device_bytes count as if it were allocated here.
  static DeviceBuffer counted_view(const std::string& name, const Host* data, std::int64_t elements) {
    DeviceBuffer buffer = view(name, data, elements);
    buffer.emulated().count_memory();
    return buffer;
  }

  /// How many.
  std::int64_t elements() const { return buffer_->elements; }
  /// A kernel's pointer to the first element.
  gmem<T> ptr() const { return {buffer_.get(), 0}; }
  /// A kernel's pointer to the first element.
  operator gmem<T>() const { return ptr(); }
  /// A kernel's pointer to the first element, to read only.
  operator gmem<const T>() const { return ptr(); }

  /// Copies all elements from the host.
  void upload(const Host* from) {
    std::memcpy(buffer_->data, from, bytes());
    buffer_->set_initialised();
  }
  /// Copies all elements to the host.
  void download(Host* to) const { std::memcpy(to, buffer_->data, bytes()); }
  /// Makes every element a NaN that nobody has written.
  void poison() { buffer_->poison(); }
  /// Sets all bytes to zero.
  void fill_zero() {
    std::memset(buffer_->data, 0, bytes());
    buffer_->set_initialised();
  }
  /// What only the emulator knows of it: see GlobalBuffer.
  GlobalBuffer& emulated() const { return *buffer_; }

 private:
  DeviceBuffer(const std::string& name, Host* data, std::int64_t elements)
      : buffer_(
            std::make_unique<GlobalBuffer>(name, data, elements, static_cast<std::int64_t>(sizeof(T)))) {}
  std::size_t bytes() const { return static_cast<std::size_t>(buffer_->elements) * sizeof(T); }

  std::unique_ptr<GlobalBuffer> buffer_;
};

/// Runs `kernel` on such a grid, and waits for it. `cluster`: the blocks of one. `dependent`: by
/// launch_dependent.
template <class... Parameters, class... Arguments>
void run_kernel(unsigned cluster, bool dependent, const char* name, void (*kernel)(Parameters...),
                dim3 grid, dim3 block, std::size_t shared_bytes, Arguments&&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::decay_t<Parameters>...> arguments;
  };
  const Call call = {kernel, {std::forward<Arguments>(arguments)...}};
  Launch what = {};
  what.kernel = name;
  what.grid = grid;
  what.block = block;
  what.cluster = cluster;
  what.shared_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(shared_bytes, 0xffffffff));
  what.body = [](const void* data) {
    const Call& c = *static_cast<const Call*>(data);
    std::apply(c.kernel, c.arguments);
  };
  what.arguments = &call;
  what.dependent = dependent;
  Emulator::current().run(what);
}

/// Runs `kernel` on a grid of blocks with `shared_bytes` bytes of dynamic shared memory each, and waits for
/// it. `name` is the kernel's in ledgers and errors. Throws KernelError.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Arguments&&... arguments) {
  run_kernel(1, false, name, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}

/// As launch, but on a GPU the kernel may begin before the one before it has ended: what that has written
/// may be used behind grid_dependency_wait() (common/ptx/dependent_launch.hpp).
template <class... Parameters, class... Arguments>
void launch_dependent(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      std::size_t shared_bytes, Arguments&&... arguments) {
  run_kernel(1, true, name, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}

/// As launch, of a grid whose blocks come in clusters of `cluster` along x, of which grid.x is a multiple:
/// see common/ptx/cluster.hpp.
template <class... Parameters, class... Arguments>
void launch_clusters(const char* name, void (*kernel)(Parameters...), unsigned cluster, dim3 grid,
                     dim3 block, std::size_t shared_bytes, Arguments&&... arguments) {
  run_kernel(cluster, false, name, kernel, grid, block, shared_bytes,
             std::forward<Arguments>(arguments)...);
}

}  // namespace flashladder::simt
