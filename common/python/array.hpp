#pragma once
// The caller's arrays as DLPack describes them: of any library through its Python protocol, and, in a small
// part of that time, of a library whose type has a table of C functions for it (PyTorch from 2.10 on).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/error.hpp"

namespace flashladder {

/// DLPack's DLTensor.
struct DlTensor {
  void* data;                     ///< On the device; the first element is byte_offset bytes behind it.
  std::int32_t device_type;       ///< DLPack's number of a kind of device.
  std::int32_t device;            ///< Which of them.
  std::int32_t ndim;              ///< How many dimensions.
  nanobind::dlpack::dtype dtype;  ///< Of an element.
  std::int64_t* shape;            ///< [ndim]
  std::int64_t* strides;          ///< [ndim], in elements.
  std::uint64_t byte_offset;      ///< In bytes.
};

/// DLPack's DLManagedTensorVersioned: a tensor with its owner.
struct OwnedTensor {
  std::uint32_t major;            ///< DLPack's version.
  std::uint32_t minor;            ///< The same.
  void* owner;                    ///< The library's own.
  void (*release)(OwnedTensor*);  ///< Gives the memory back.
  std::uint64_t flags;            ///< The library's own.
  DlTensor tensor;                ///< The memory.
};

/// DLPack's DLPackExchangeAPI (1.3), of which these functions are called here.
struct ExchangeApi {
  /// Is told why there is no memory: the kind of an error, and its message.
  using Fail = void (*)(void* context, const char* kind, const char* message);
  std::uint32_t major;  ///< DLPack's version.
  std::uint32_t minor;  ///< The same.
  void* older;          ///< A table of an older version, which is not looked at.
  /// A contiguous one of the dtype, shape and device of `like`. Not 0: `fail` has been called.
  int (*allocate)(DlTensor* like, OwnedTensor** into, void* context, Fail fail);
  void* own;                                  ///< Not called here.
  void* to_python;                            ///< Not called here.
  int (*view)(void* object, DlTensor* into);  ///< Not 0: there is a Python error.
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** into);  ///< The same.

  /// That of the type of `object`; nullptr where it has none.
  static const ExchangeApi* of(nanobind::handle object) { return of_type(object.type()); }

  /// That of `type`; nullptr where it has none.
  static const ExchangeApi* of_type(nanobind::handle type_object) {
    static std::map<PyTypeObject*, const ExchangeApi*> known;  // only one thread at a time has the GIL
    auto* const type = reinterpret_cast<PyTypeObject*>(type_object.ptr());
    if (const auto found = known.find(type); found != known.end()) return found->second;
    constexpr const char* name = "dlpack_exchange_api";
    const nanobind::object capsule =
        nanobind::getattr(type_object, "__dlpack_c_exchange_api__", nanobind::none());
    if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
    const auto* const api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), name));
    if (api->major != 1 || api->view == nullptr) return nullptr;
    Py_INCREF(type);  // for good, so that no other type gets its address
    return known[type] = api;
  }
};

/// Memory of a library's own allocator, of one dimension; given back when it goes out of scope.
class LibraryMemory {
 public:
  /// `bytes` bytes on the device of `place`. Throws Error where there are none.
  LibraryMemory(const ExchangeApi& api, const DlTensor& place, std::int64_t bytes) {
    std::int64_t stride = 1;
    DlTensor like = place;
    like.ndim = 1, like.shape = &bytes, like.strides = &stride;
    like.dtype = {static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::UInt), 8, 1};
    std::string why;
    const auto fail = [](void* into, const char*, const char* message) {
      const std::string_view all = message;  // of several lines: behind the first one are C++'s frames
      *static_cast<std::string*>(into) = all.substr(0, all.find('\n'));
    };
    if (api.allocate(&like, &memory_, &why, fail) != 0)
      throw Error("out of device memory: a buffer needs " + std::to_string((bytes >> 20) + 1) +
                  " MiB: " + why);
  }
  ~LibraryMemory() {
    if (memory_ != nullptr) memory_->release(memory_);
  }
  /// `other` has none from here on.
  LibraryMemory(LibraryMemory&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  LibraryMemory(const LibraryMemory&) = delete;
  LibraryMemory& operator=(const LibraryMemory&) = delete;

  /// On the device.
  void* data() const { return static_cast<std::byte*>(memory_->tensor.data) + memory_->tensor.byte_offset; }

 private:
  OwnedTensor* memory_ = nullptr;
};

/// Memory with a shape. What it is of must live on: with a table of C functions it does not own it.
class Array {
 public:
  Array() = default;

  /// Whether `object` is one that DLPack describes; then it is what this is of from here on.
  /// @param by_table  read it by its type's table of C functions, which does not look at what else a tensor
  ///                  may be than memory; it has one
  bool view(nanobind::handle object, bool by_table) {
    if (by_table) {
      if (ExchangeApi::of(object)->view(object.ptr(), &tensor_) != 0) throw nanobind::python_error();
      return true;
    }
    if (!nanobind::try_cast(object, owner_)) return false;
    tensor_ = {.data = const_cast<void*>(owner_.data()),
               .device_type = owner_.device_type(),
               .device = owner_.device_id(),
               .ndim = static_cast<std::int32_t>(owner_.ndim()),
               .dtype = owner_.dtype(),
               .shape = const_cast<std::int64_t*>(owner_.shape_ptr()),
               .strides = const_cast<std::int64_t*>(owner_.stride_ptr()),
               .byte_offset = 0};
    return true;
  }

  /// How many dimensions.
  std::size_t ndim() const { return static_cast<std::size_t>(tensor_.ndim); }
  /// The sizes of all.
  std::span<const std::int64_t> shape() const { return {tensor_.shape, ndim()}; }
  /// The size of dimension i.
  std::int64_t shape(std::size_t i) const { return tensor_.shape[i]; }
  /// From one element of dimension i to the next, in elements.
  std::int64_t stride(std::size_t i) const { return tensor_.strides[i]; }
  /// Of an element.
  nanobind::dlpack::dtype dtype() const { return tensor_.dtype; }
  /// Of an element, in bytes.
  std::int64_t itemsize() const { return tensor_.dtype.bits / 8; }
  /// The first element, on the device.
  void* data() const { return static_cast<std::byte*>(tensor_.data) + tensor_.byte_offset; }
  /// DLPack's number of a kind of device.
  std::int32_t device_type() const { return tensor_.device_type; }
  /// Which of them.
  std::int32_t device() const { return tensor_.device; }

 private:
  DlTensor tensor_{};
  nanobind::ndarray<nanobind::ro> owner_;  // of none, where the caller owns it
};

}  // namespace flashladder
