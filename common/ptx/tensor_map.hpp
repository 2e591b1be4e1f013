#pragma once
// Makes tensor maps, on the host: what tma.hpp copies by. (CUDA driver API, tensor map object management.)
#include <cstdint>
#include <string>

#include "common/error.hpp"
#include "common/ptx/tma.hpp"
#include "common/simt/simt_host.hpp"

#if defined(__CUDACC__)
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#endif

namespace flashladder {

/// A tensor of four dimensions in a buffer, the fastest first, and the boxes that are copied at a time.
struct TensorShape {
  std::int64_t dims[4];     ///< Elements, 1 or more.
  std::int64_t strides[3];  ///< Elements from one to the next of dimensions 1, 2 and 3.
  int box[4];               ///< Elements of a box, 1 to 256 of each dimension.
  int swizzle = 0;          ///< Bytes within which chunks of 16 change places: 128, 64, 32; 0: none.

  /// Throws UsageError where TMA takes no such tensor of elements of `element_bytes` bytes at `address`:
  /// which rule it breaks, and what would be taken.
  void require_taken(const std::string& name, std::uintptr_t address, std::int64_t element_bytes) const {
    const auto refuse = [&](const std::string& what) {
      throw UsageError("TMA cannot copy " + name + ": " + what);
    };
    const auto text = [](std::int64_t n) { return std::to_string(n); };
    if (address % 16 != 0)
      refuse("it begins " + text(static_cast<std::int64_t>(address % 16)) +
             " bytes behind a multiple of 16: align its first element to 16 bytes");
    for (int k = 0; k < 4; ++k) {
      if (dims[k] < 1 || dims[k] > std::int64_t{1} << 32)
        refuse("dimension " + text(k) + " has " + text(dims[k]) + " elements: give 1 to 2^32");
      if (box[k] < 1 || box[k] > 256)
        refuse("a box has " + text(box[k]) + " elements of dimension " + text(k) + ": give 1 to 256");
    }
    for (int k = 1; k < 4; ++k) {
      const std::int64_t bytes = strides[k - 1] * element_bytes;
      if (dims[k] > 1 && (bytes < 16 || bytes % 16 != 0 || bytes >= std::int64_t{1} << 40))
        refuse("the stride of dimension " + text(k) + " is " + text(bytes) +
               " bytes: give a multiple of 16 below 2^40");
    }
    const std::int64_t row = box[0] * element_bytes;
    if (row % 16 != 0) refuse("a row of a box has " + text(row) + " bytes: give a multiple of 16");
    if (swizzle != 0 && swizzle != 32 && swizzle != 64 && swizzle != 128)
      refuse("its swizzle is " + text(swizzle) + " bytes: give 0, 32, 64 or 128");
    if (swizzle != 0 && row != swizzle)
      refuse("a row of a box has " + text(row) + " bytes, and its swizzle " + text(swizzle) +
             ": make them the same");
  }
  /// That of a tensor of one batch entry in whose rows sequences are packed. Row r of a sequence of N rows
  /// that begins at row x is at dims[1] - N + r of dimension 1 and x + N of dimension 3: both count rows,
  /// and what is behind the sequence is behind dimension 1. The tensor begins dims[1] rows before the first
  /// one, which nobody reads.
  TensorShape ragged(std::int64_t element_bytes) const {
    TensorShape by_row = *this;
    by_row.dims[3] = dims[1] + 1;
    by_row.strides[2] = stride_bytes(1, element_bytes) / element_bytes;  // as dimension 1 has it
    return by_row;
  }
  /// The stride of a dimension in bytes; of one with a single element any that is taken.
  std::int64_t stride_bytes(int dimension, std::int64_t element_bytes) const {
    return dims[dimension] == 1 ? 16 : strides[dimension - 1] * element_bytes;
  }
};

#if defined(__CUDACC__)

inline namespace for_cuda {

/// The map of a tensor that begins at `address`, of which make_tensor_map has said that TMA takes it.
/// Throws Error where the driver has no tensor maps.
template <class T>
tensor_map encode_tensor_map(const std::string& name, std::uintptr_t address, const TensorShape& shape) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16> || std::is_same_v<T, f32>);
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                                cudaEnableDefault, &found);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess || function == nullptr) {
      (void)cudaGetLastError();  // reported here: the next launch must not find it
      throw Error(
          "the NVIDIA driver has no tensor maps, by which TMA copies: update it to one for CUDA 12.0 or "
          "newer, or run on the emulator");
    }
    return reinterpret_cast<Encode>(function);
  }();
  constexpr CUtensorMapDataType type = std::is_same_v<T, bf16>  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : std::is_same_v<T, f16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const cuuint64_t dims[4] = {
      static_cast<cuuint64_t>(shape.dims[0]), static_cast<cuuint64_t>(shape.dims[1]),
      static_cast<cuuint64_t>(shape.dims[2]), static_cast<cuuint64_t>(shape.dims[3])};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(shape.stride_bytes(1, sizeof(T))),
                                 static_cast<cuuint64_t>(shape.stride_bytes(2, sizeof(T))),
                                 static_cast<cuuint64_t>(shape.stride_bytes(3, sizeof(T)))};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(shape.box[0]), static_cast<cuuint32_t>(shape.box[1]),
                             static_cast<cuuint32_t>(shape.box[2]), static_cast<cuuint32_t>(shape.box[3])};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = shape.swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : shape.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : shape.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                           : CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMap made{};
  const CUresult result = encode(&made, type, 4, reinterpret_cast<void*>(address), dims, strides, box,
                                 element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error("the driver makes no tensor map of " + name + " (error " + std::to_string(result) + ")");
  static_assert(sizeof(tensor_map) == sizeof made && alignof(tensor_map) >= alignof(CUtensorMap));
  tensor_map map;
  std::memcpy(&map, &made, sizeof map);
  return map;
}

/// The map of a tensor whose first element is `first`. Throws UsageError as TensorShape::require_taken, and
/// Error where the driver has no tensor maps.
template <class T>
tensor_map make_tensor_map(const std::string& name, const T* first, const TensorShape& shape) {
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  shape.require_taken(name, address, sizeof(T));
  return encode_tensor_map<T>(name, address, shape);
}

/// The same of one in whose rows sequences are packed: that of TensorShape::ragged.
template <class T>
tensor_map make_ragged_tensor_map(const std::string& name, const T* first, const TensorShape& shape) {
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  shape.require_taken(name, address, sizeof(T));
  const auto before = static_cast<std::uintptr_t>(shape.dims[1] * shape.stride_bytes(1, sizeof(T)));
  return encode_tensor_map<T>(name, address - before, shape.ragged(sizeof(T)));
}

}  // namespace for_cuda

#else

inline namespace for_emulator {

/// The map of a tensor whose first element is `first`. Throws UsageError as TensorShape::require_taken.
template <class T>
tensor_map make_tensor_map(const std::string& name, simt::gmem<T> first, const TensorShape& shape) {
  constexpr std::int64_t element = sizeof(T);
  tensor_map map;
  map.buffer = first.buffer();
  if (map.buffer == nullptr) throw UsageError("TMA cannot copy " + name + ": the pointer points nowhere");
  map.offset = first.offset() * element;
  shape.require_taken(name, reinterpret_cast<std::uintptr_t>(map.buffer->data + map.offset), element);
  map.element_bytes = element;
  map.swizzle = shape.swizzle;
  std::int64_t last = first.offset();
  for (int k = 0; k < 4; ++k) {
    map.dims[k] = shape.dims[k];
    map.strides[k] = k == 0 ? element : shape.stride_bytes(k, element);
    map.box[k] = shape.box[k];
    last += (shape.dims[k] - 1) * map.strides[k] / element;
  }
  if (last >= map.buffer->elements)
    throw UsageError("TMA cannot copy " + name + ": its last element is number " + std::to_string(last) +
                     " of a buffer of " + std::to_string(map.buffer->elements));
  return map;
}

/// The same of one in whose rows sequences are packed: that of TensorShape::ragged.
template <class T>
tensor_map make_ragged_tensor_map(const std::string& name, simt::gmem<T> first, const TensorShape& shape) {
  tensor_map map = make_tensor_map<T>(name, first, shape);
  const TensorShape by_row = shape.ragged(sizeof(T));
  map.offset -= map.dims[1] * map.strides[1];
  map.dims[3] = by_row.dims[3];
  map.strides[3] = by_row.stride_bytes(3, sizeof(T));
  return map;
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
