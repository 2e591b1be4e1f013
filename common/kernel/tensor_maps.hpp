#pragma once
// Tensor maps of what a pass is given, on the host.
#include "common/kernel/host.hpp"
#include "common/kernel/panels.hpp"
#include "common/ptx/tensor_map.hpp"

namespace flashladder {

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// The map of the tensor `name` of a Forward or a Backward, [batch, heads, rows, d], that `buffer` is a
/// view of; a box is a panel of Tile. Where sequences are `packed` it is that of TensorShape::ragged.
/// Throws UsageError where TMA takes no such tensor.
template <class Tile, class T, class Call>
tensor_map map_of(const Call& f, const char* name, const DeviceBuffer<T>& buffer, bool packed = false) {
  const NamedTensor& named = named_tensor(name);
  const auto [batch, heads, rows, columns] = named.shape(f.problem);
  const Strides strides = strides_of(named.of(f));
  const TensorShape shape = {.dims = {columns, rows, heads, batch},
                             .strides = {strides.row, strides.head, strides.batch},
                             .box = {Tile::columns, Tile::rows, 1, 1},
                             .swizzle = Tile::row_bytes};
  return packed ? make_ragged_tensor_map<T>(name, buffer, shape) : make_tensor_map<T>(name, buffer, shape);
}

/// The map of numbers of rows, [batch, heads, rows], in a box `box` of which follow each other.
inline tensor_map map_of_rows(const char* name, const DeviceBuffer<f32>& buffer, std::int64_t batch,
                              std::int64_t heads, std::int64_t rows, int box) {
  return make_tensor_map<f32>(name, buffer,
                              {.dims = {rows, heads, batch, 1},
                               .strides = {rows, heads * rows, heads * rows},
                               .box = {box, 1, 1, 1}});
}

}  // namespace for_emulator
}  // namespace flashladder
