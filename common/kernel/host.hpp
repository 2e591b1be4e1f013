#pragma once
// How the host calls kernels: buffers, sizes, and the choice of a kernel by dtype and head dimension.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"
#include "common/kernel/device.hpp"
#include "common/kernel/tile_table.hpp"
#include "common/simt/simt_host.hpp"

namespace flashladder {

/// What the fp32 kernels are compiled for.
inline constexpr std::int64_t fp32_head_dims[] = {32, 64, 128};
/// What tensor cores multiply here.
inline constexpr Dtype half_dtypes[] = {Dtype::fp16, Dtype::bf16};
/// What their kernels are compiled for.
inline constexpr std::int64_t half_head_dims[] = {32, 64, 96, 128, 256};
/// What those kernels take that fill up columns with zeros. @hideinitializer
template <std::int64_t most>
inline constexpr auto multiples_of_8_up_to = [] {
  std::array<std::int64_t, most / 8> all;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = 8 * (static_cast<std::int64_t>(i) + 1);
  return all;
}();
/// The same, of all head dimensions.
inline constexpr auto& multiples_of_8 = multiples_of_8_up_to<max_head_dim>;

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
inline constexpr Backend kernel_backend = Backend::cuda;
/// Of the current GPU: 80 for compute capability 8.0.
inline int architecture() {
  return gpu_architecture();
}
/// Multiprocessors of the current GPU.
inline int multiprocessors() {
  return gpu_multiprocessors();
}
/// The size of its L2 cache.
inline std::int64_t L2_bytes() {
  return gpu_L2_bytes();
}
#else
inline namespace for_emulator {
inline constexpr Backend kernel_backend = Backend::emulator;  ///< What this file is being compiled for.
/// That of the GPU that is emulated: compute capability 9.0, as 90.
constexpr int architecture() {
  return 90;
}
/// Multiprocessors of the GPU that is emulated.
constexpr int multiprocessors() {
  return simt::multiprocessors;
}
/// The size of its L2 cache.
constexpr std::int64_t L2_bytes() {
  return simt::L2_bytes;
}
#endif

/// The strides of a tensor as kernels take them.
inline Strides strides_of(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

/// What a kernel needs to know of a pass over Q, K, V and O.
inline Sizes sizes_of(const Problem& p, const Tensor& Q, const Tensor& K, const Tensor& V,
                      const Tensor& O) {
  return {static_cast<int>(p.q_heads),
          static_cast<int>(p.q_heads / p.kv_heads),
          static_cast<int>(p.Nq),
          static_cast<int>(p.Nk),
          static_cast<int>(p.d),
          p.causal,
          p.softmax_scale(),
          strides_of(Q),
          strides_of(K),
          strides_of(V),
          strides_of(O)};
}

/// A view of the tensor `name` of a Forward or a Backward, of elements T. Throws UsageError where a row of
/// 16-bit numbers does not start at a multiple of 16 bytes: they are copied 16 bytes at a time.
template <class T, class Call>
DeviceBuffer<T> view_of(const Call& f, const char* name) {
  const NamedTensor& named = named_tensor(name);
  const Tensor& t = named.of(f);
  if (sizeof(T) == 2 && (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0 || t.stride[0] % 8 != 0 ||
                         t.stride[1] % 8 != 0 || t.stride[2] % 8 != 0)) {
    throw UsageError(
        std::string("a row of ") + name +
        " does not start at a multiple of 16 bytes: make its strides multiples of 8 elements and "
        "align its first element to 16 bytes");
  }
  const auto [batch, heads, rows, columns] = named.shape(f.problem);
  return DeviceBuffer<T>::view(
      name, static_cast<typename DeviceBuffer<T>::Host*>(t.data),
      (batch - 1) * t.stride[0] + (heads - 1) * t.stride[1] + (rows - 1) * t.stride[2] + columns);
}

/// The same of a tensor that some variant has; of no elements where this problem, or this pass, has it not.
template <class T, class Call>
DeviceBuffer<T> view_if_given(const Call& f, const char* name) {
  if (named_tensor(name).given(Call::pass, Saved::L, f.problem)) return view_of<T>(f, name);
  return DeviceBuffer<T>::view(name, static_cast<const typename DeviceBuffer<T>::Host*>(nullptr), 0);
}

/// The tensors of a forward pass as kernels take them, of elements T.
template <class T = f32>
struct ForwardBuffers {
  DeviceBuffer<T> Q;    ///< [batch, q_heads, Nq, d]
  DeviceBuffer<T> K;    ///< [batch, kv_heads, Nk, d]
  DeviceBuffer<T> V;    ///< [batch, kv_heads, Nk, d]
  DeviceBuffer<T> O;    ///< [batch, q_heads, Nq, d]
  DeviceBuffer<f32> L;  ///< [batch, q_heads, Nq]
  Sizes sizes;          ///< Of all of them.
  int heads;            ///< Query heads.
  int batch;            ///< Batch entries.

  /// Views of the caller's memory. Throws UsageError as view_of.
  explicit ForwardBuffers(const Forward& f)
      : Q(view_of<T>(f, "Q")),
        K(view_of<T>(f, "K")),
        V(view_of<T>(f, "V")),
        O(view_of<T>(f, "O")),
        L(view_of<f32>(f, "L")),
        sizes(sizes_of(f.problem, f.Q, f.K, f.V, f.O)),
        heads(sizes.q_heads),
        batch(static_cast<int>(f.problem.batch)) {}
};

/// The tensors of a backward pass as kernels take them, of elements T.
template <class T = f32>
struct BackwardBuffers {
  DeviceBuffer<T> Q;    ///< [batch, q_heads, Nq, d]
  DeviceBuffer<T> K;    ///< [batch, kv_heads, Nk, d]
  DeviceBuffer<T> V;    ///< [batch, kv_heads, Nk, d]
  DeviceBuffer<T> O;    ///< [batch, q_heads, Nq, d]
  DeviceBuffer<f32> L;  ///< [batch, q_heads, Nq]
  DeviceBuffer<T> dO;   ///< [batch, q_heads, Nq, d]
  DeviceBuffer<T> dQ;   ///< [batch, q_heads, Nq, d]
  DeviceBuffer<T> dK;   ///< [batch, kv_heads, Nk, d]
  DeviceBuffer<T> dV;   ///< [batch, kv_heads, Nk, d]
  BackwardSizes sizes;  ///< Of all of them.
  int heads;            ///< Query heads.
  int kv_heads;         ///< Key/value heads.
  int batch;            ///< Batch entries.

  /// Views of the caller's memory. Throws UsageError as view_of.
  explicit BackwardBuffers(const Backward& f)
      : Q(view_of<T>(f, "Q")),
        K(view_of<T>(f, "K")),
        V(view_of<T>(f, "V")),
        O(view_of<T>(f, "O")),
        L(view_of<f32>(f, "L")),
        dO(view_of<T>(f, "dO")),
        dQ(view_of<T>(f, "dQ")),
        dK(view_of<T>(f, "dK")),
        dV(view_of<T>(f, "dV")),
        sizes{sizes_of(f.problem, f.Q, f.K, f.V, f.O), strides_of(f.dO), strides_of(f.dQ), strides_of(f.dK),
              strides_of(f.dV)},
        heads(sizes.q_heads),
        kv_heads(static_cast<int>(f.problem.kv_heads)),
        batch(static_cast<int>(f.problem.batch)) {}
};

/// Extra device memory of a stage, of elements T, counted by its workspace.
template <class T = f32>
class ExtraBuffer : private Workspace::Reservation, public DeviceBuffer<T> {
 public:
  /// `elements` elements, for a Forward or a Backward. Throws OutOfMemory.
  template <class Call>
  ExtraBuffer(const Call& f, const char* name, std::int64_t elements)
      : Reservation(f.workspace, elements * static_cast<std::int64_t>(sizeof(T))),
        DeviceBuffer<T>(name, elements) {
    if (f.workspace.poison) this->poison();
  }
};

/// What a forward pass saved for the backward pass alone: it was allocated there, and is extra memory of
/// the stage all the same.
class SavedBuffer {
 public:
  /// A view of the `elements` elements of `tensor`. Throws OutOfMemory where the workspace's limit is less.
  SavedBuffer(const Backward& f, const char* name, const Tensor& tensor, std::int64_t elements)
      : counted_(f.workspace, elements * static_cast<std::int64_t>(sizeof(float))),
        view_(DeviceBuffer<f32>::counted_view(name, static_cast<const float*>(tensor.data), elements)) {}
  /// What kernels are given.
  const DeviceBuffer<f32>& view() const { return view_; }

 private:
  Workspace::Reservation counted_;
  DeviceBuffer<f32> view_;
};

/// The Dtype whose elements kernels hold in a T.
template <class T>
inline constexpr Dtype dtype_of = std::is_same_v<T, f16>    ? Dtype::fp16
                                  : std::is_same_v<T, bf16> ? Dtype::bf16
                                                            : Dtype::fp32;

/// What a kernel is chosen by.
struct Choice {
  Dtype dtype;     ///< Of Q, K, V and O.
  std::int64_t d;  ///< Head dimension.
  bool causal;     ///< With the mask or without.
  bool backward;   ///< Of a table of tiles: which pass.
};

/// Whether there is a Choice among all that this program will be given for which `serves` is true: a kernel
/// that serves none is not compiled. The grader of a lab says what they are (common/labs/program.cpp); else
/// they may be any.
constexpr bool is_asked_for([[maybe_unused]] auto serves) {
#ifdef FLASHLADDER_ONLY_FOR
  constexpr Choice only_for[] = {FLASHLADDER_ONLY_FOR};
  return std::any_of(std::begin(only_for), std::end(only_for), serves);
#else
  return true;
#endif
}

/// The first of `dims`, in ascending order, that is not below d; 0 where there is none.
template <int... dims>
constexpr int columns_for(std::int64_t d) {
  int columns = 0;
  static_cast<void>(((columns = d <= dims ? dims : 0, columns != 0) || ...));
  return columns;
}

/// Calls `body` with the first of `dims`, in ascending order, that is not below d, as a compile-time
/// constant: `for_head_dim<f32, 32, 64>(d, [&](auto dim) { run<dim>(...); });`. T is the type of Q, K, V
/// and O. Throws UsageError for a d above all of them.
template <class T, int... dims, class Body>
void for_head_dim(std::int64_t d, Body body) {
  const int columns = columns_for<dims...>(d);
  bool called = false;
  const auto call = [&]<int dim>() {
    constexpr auto serves = [](const Choice& choice) {
      return choice.dtype == dtype_of<T> && columns_for<dims...>(choice.d) == dim;
    };
    if constexpr (is_asked_for(serves)) {
      if (columns != dim) return;
      called = true;
      body(std::integral_constant<int, dim>());
    }
  };
  (call.template operator()<dims>(), ...);
  if (!called) throw UsageError("kernels are not compiled for head dimension " + std::to_string(d));
}

/// Takes every row of a table.
struct EveryRow {
  /// True.
  constexpr bool operator()(const auto&) const { return true; }
};

/// Takes the rows of a table that are `wanted` and whose tiles are for the causal mask.
template <auto wanted>
struct MaskedRow {
  /// Whether it is one.
  constexpr bool operator()(const auto& row) const { return row.causal && wanted(row); }
};

/// The problem with the causal mask, whose tiles serve kernels that have masks of their own.
inline Problem with_mask(Problem p) {
  p.causal = true;
  return p;
}

/// Whether row i of `table` serves anything that this program will be given.
template <const auto& table, std::size_t i>
constexpr bool is_row_asked_for() {
  return is_asked_for([](const Choice& choice) {
    return choice.backward == decltype(table[i].tile)::is_backward &&
           &row_for(table, architecture(), choice.dtype, choice.d, choice.causal) == &table[i];
  });
}

/// Whether row i of `table` may be the one of a GPU that this program can run on. The emulator stands for
/// one. Code without PTX, FLASHLADDER_CODE_FOR of common/cmake/Cuda.cmake, is for some GPUs, else it is for
/// all.
template <const auto& table, std::size_t i>
constexpr bool is_row_of_a_gpu() {
#if defined(__CUDACC__) && defined(FLASHLADDER_CODE_FOR)
  return is_chosen_on_any(table, table[i], {FLASHLADDER_CODE_FOR});
#elif defined(__CUDACC__)
  return true;
#else
  return table[i].architecture == architecture();
#endif
}

/// Calls `body` with row i of `table` as a compile-time constant if it is the one that `chosen` points to,
/// and returns whether it did. A row of GPUs that this program is not for is not compiled, nor is one that
/// is not `wanted` or serves nothing that is asked for.
template <const auto& table, std::size_t i, auto wanted, class Row, class Body>
bool call_if_chosen(const Row* chosen, Body& body) {
  if constexpr (is_row_of_a_gpu<table, i>() && is_row_asked_for<table, i>() && wanted(table[i])) {
    if (chosen == &table[i]) {
      body(std::integral_constant<Row, table[i]>());
      return true;
    }
  }
  return false;
}

/// Calls `body` with the row of `table` that serves `p` on this GPU, as a compile-time constant:
/// `for_row<table>(f.problem, [&](auto chosen) { constexpr Row row = chosen; run<row.d>(...); });`.
/// Who needs only some of the kernels, a test, says which rows are `wanted`. Throws Error on a GPU that the
/// kernels are not compiled for.
template <const auto& table, auto wanted = EveryRow(), class Body>
void for_row(const Problem& p, Body body) {
  const auto& chosen = row_for(table, architecture(), p.dtype, p.d, p.causal);
  const bool called = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (call_if_chosen<table, i, wanted>(&chosen, body) || ...);
  }
  (std::make_index_sequence<std::size(table)>());
  if (kernel_backend == Backend::cuda && !called) {
    throw Error("this build has no code for a GPU of compute capability " + capability(architecture()) +
                ": build for it too (CMAKE_CUDA_ARCHITECTURES), or use --backend emulator");
  }
}

/// As for_row, with the row for the causal mask, whether `p` has it or not.
template <const auto& table, auto wanted = EveryRow(), class Body>
void for_masked_row(const Problem& p, Body body) {
  for_row<table, MaskedRow<wanted>{}>(with_mask(p), body);
}

/// Takes the rows of a table whose tiles are for the causal mask and one of these numbers of columns.
template <int... widths>
struct MaskedRowOf {
  /// Whether it is one.
  constexpr bool operator()(const auto& row) const { return row.causal && ((row.d == widths) || ...); }
};

/// The problem with the causal mask and the first of these numbers of columns, in ascending order, that is
/// not below its own: a row of a table that has these serves all problems that need no more. Each variant
/// of attention is a kernel of its own for every row, and takes its time to compile.
template <int... widths>
Problem with_columns(Problem p) {
  p.d = columns_for<widths...>(p.d);
  return with_mask(p);
}

/// As for_row, with the row for with_columns<widths...>(p): `for_masked_row_of<table, 64, 128>(...)`.
template <const auto& table, int... widths, class Body>
void for_masked_row_of(const Problem& p, Body body) {
  for_row<table, MaskedRowOf<widths...>{}>(with_columns<widths...>(p), body);
}

/// Calls `body` with a number of the type that holds `dtype`, fp16 or bf16. Throws UsageError for any
/// other.
template <class Body>
void for_half_dtype(Dtype dtype, Body body) {
  if (dtype == Dtype::fp16) return body(f16());
  if (dtype == Dtype::bf16) return body(bf16());
  throw UsageError("kernels for tensor cores take fp16 and bf16, not " + std::string(to_string(dtype)));
}

}  // namespace for_emulator
}  // namespace flashladder
