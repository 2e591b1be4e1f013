#pragma once
// What all kernels of the ladder need and none is about: where a head lies in memory, the mask, loads of
// tiles that end in the middle, sums over lanes; and on the host side, buffers and the choice of a kernel
// by head dimension.
#include <type_traits>

#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"
#include "common/ptx/cp_async.hpp"
#include "common/ptx/mma.hpp"
#include "common/simt/simt.hpp"

namespace flashladder {

/// What the fp32 kernels are compiled for.
inline constexpr std::int64_t fp32_head_dims[] = {32, 64, 128};
/// What tensor cores multiply here.
inline constexpr Dtype half_dtypes[] = {Dtype::fp16, Dtype::bf16};
/// What their kernels are compiled for.
inline constexpr std::int64_t half_head_dims[] = {32, 64, 96, 128, 256};

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
inline constexpr Backend kernel_backend = Backend::cuda;
/// Of the current GPU: 80 for compute capability 8.0. Throws Error.
inline int architecture() {
  int device = 0, major = 0, minor = 0;
  simt::require(cudaGetDevice(&device), "the current GPU");
  simt::require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                "the GPU's kind");
  simt::require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                "the GPU's kind");
  return 10 * major + minor;
}
#else
inline namespace for_emulator {
inline constexpr Backend kernel_backend = Backend::emulator;  ///< What this file is being compiled for.
/// That of the GPU that is emulated: compute capability 9.0, as 90.
constexpr int architecture() {
  return 90;
}
#endif

/// Strides of a [batch, heads, rows, d] tensor, in elements; that of d is 1.
struct Strides {
  std::int64_t batch;  ///< From one batch entry to the next.
  std::int64_t head;   ///< From one head to the next.
  std::int64_t row;    ///< From one row to the next.

  /// Offset of row 0 of head h of batch entry b.
  __device__ __forceinline__ std::int64_t at(int b, int h) const { return b * batch + h * head; }
};

/// A Problem as a kernel needs it.
struct Sizes {
  int q_heads;  ///< Query heads.
  int group;    ///< Query heads that share a key/value head.
  int Nq;       ///< Query rows.
  int Nk;       ///< Keys.
  bool causal;  ///< Query i sees key j when j <= i + Nk - Nq.
  float scale;  ///< Factor on the scores.
  Strides Q;    ///< Of [batch, q_heads, Nq, d].
  Strides K;    ///< Of [batch, kv_heads, Nk, d].
  Strides V;    ///< Of [batch, kv_heads, Nk, d].
  Strides O;    ///< Of [batch, q_heads, Nq, d].

  /// The key/value head that query head h reads.
  __device__ __forceinline__ int kv_head(int h) const { return h / group; }
  /// The number of query head h of batch entry b among all.
  __device__ __forceinline__ std::int64_t head(int b, int h) const {
    return static_cast<std::int64_t>(b) * q_heads + h;
  }
  /// Where the rows of query head h of batch entry b begin in arrays [batch, q_heads, Nq], such as L.
  __device__ __forceinline__ std::int64_t row0(int b, int h) const { return head(b, h) * Nq; }
  /// How many keys row i sees: keys 0 ... visible_keys(i) - 1. The whole mask in one number.
  __device__ __forceinline__ int visible_keys(int i) const {
#ifdef __CUDACC__
    constexpr int added = 0;
#else
    const int added = simt::ask_for_row(i);  // 0, but where it is tried whether a kernel asks
#endif
    if (!causal) return Nk;
    const int keys = i + 1 + Nk - Nq + added;
    return keys < 0 ? 0 : keys < Nk ? keys : Nk;
  }
};

/// As Sizes, with what only a backward pass has.
struct BackwardSizes : Sizes {
  Strides dO;  ///< Of [batch, q_heads, Nq, d].
  Strides dQ;  ///< Of [batch, q_heads, Nq, d].
  Strides dK;  ///< Of [batch, kv_heads, Nk, d].
  Strides dV;  ///< Of [batch, kv_heads, Nk, d].
};

/// How many tiles of `size` n elements take.
__host__ __device__ __forceinline__ constexpr unsigned tiles(std::int64_t n, int size) {
  return static_cast<unsigned>((n + size - 1) / size);
}

/// m, or 0 where it is -infinity because no key was seen yet: exp(S - m) is then 0 instead of the NaN of
/// exp(-inf + inf).
__device__ __forceinline__ f32 finite(f32 m) {
  return m == -INFINITY ? f32(0.f) : m;
}

/// The largest x of `lanes` neighbouring lanes, a power of two.
template <int lanes>
__device__ __forceinline__ f32 lanes_max(f32 x) {
#pragma unroll
  for (int o = lanes / 2; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}
/// The sum of x over `lanes` neighbouring lanes, a power of two.
template <int lanes>
__device__ __forceinline__ f32 lanes_sum(f32 x) {
#pragma unroll
  for (int o = lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

/// Copies rows row0 ... row0 + rows - 1 of a matrix [N, d] into shared memory with a block of `threads`
/// threads, neighbours next to each other; rows from N on become 0.
template <int d, int threads, int rows, int pitch>
__device__ __forceinline__ void load_tile(smem_tile<f32, rows, pitch>& tile,  // [rows, d] of [rows, pitch]
                                          gmem<const f32> matrix,             // [N, d]
                                          std::int64_t stride, int row0, int N) {
#pragma unroll 4
  for (int e = threadIdx.x; e < rows * d; e += threads) {
    const int r = e / d, c = e % d;
    f32 x = 0.f;
    if (row0 + r < N) x = matrix[(row0 + r) * stride + c];
    tile(r, c) = x;
  }
}

/// Where column c of row r of a tile lies in its row: at c.
struct AsItIs {
  /// c.
  __device__ __forceinline__ int operator()(int, int c) const { return c; }
};

/// As load_tile, of 16-bit numbers, 16 bytes at a time; columns c ... c + 7 of row r go to place(r, c).
template <int d, int threads, class T, int rows, class Place = AsItIs>
__device__ __forceinline__ void load_tile(smem_tile<T, rows, d>& tile,                 // [rows, d]
                                          gmem<const std::type_identity_t<T>> matrix,  // [N, d]
                                          std::int64_t stride, int row0, int N, Place place = {}) {
  constexpr int chunks = d / 8;  // of a row
#pragma unroll
  for (int e = threadIdx.x; e < rows * chunks; e += threads) {
    const int r = e / chunks, c = e % chunks * 8;
    copy_16B<T>(tile.at(r, place(r, c)), matrix + (row0 + r) * stride + c, row0 + r < N);
  }
}

/// As load_tile, of `rows` rows to row `to` of the tile and those that follow, by copies that arrive after
/// a cp_async_commit and a cp_async_wait. `to` is a multiple of what `place` repeats after. Columns from
/// `columns`, a multiple of 8, on become 0.
template <int rows, int d, int threads, class T, int all, class Place>
__device__ __forceinline__ void load_tile_async(smem_tile<T, all, d>& tile, int to,          // [all, d]
                                                gmem<const std::type_identity_t<T>> matrix,  // [N, columns]
                                                std::int64_t stride, int row0, int N, Place place,
                                                int columns = d) {
  constexpr int chunks = d / 8;  // of a row
  if constexpr (threads % chunks == 0 && rows * chunks % threads == 0) {
    // Each thread stays in its columns: one address, and steps of whole rows.
    constexpr int step = threads / chunks;
    const int r = threadIdx.x / chunks, c = threadIdx.x % chunks * 8;
    const int end = c < columns ? N : 0;
    gmem<const T> from = matrix + ((row0 + r) * stride + c);
#pragma unroll 4
    for (int i = 0; i < rows; i += step) {
      cp_async_16B<T>(tile.at(to + i + r, place(i + r, c)), from, row0 + i + r < end);
      from += step * stride;
    }
  } else {
#pragma unroll 4
    for (int e = threadIdx.x; e < rows * chunks; e += threads) {
      const int r = e / chunks, c = e % chunks * 8;
      cp_async_16B<T>(tile.at(to + r, place(r, c)), matrix + (row0 + r) * stride + c,
                      row0 + r < N && c < columns);
    }
  }
}

/// Tells the checks what a kernel has come to: element (row, column) of its intermediate `name` for query
/// head `head` of all is `value` times `factor`. Nothing on a GPU.
#ifdef __CUDACC__
__device__ __forceinline__ void probe(const char*, std::int64_t, int, int, f32, float = 1) {}
#else
inline void probe(const char* name, std::int64_t head, int row, int column, f32 value, float factor = 1) {
  if (simt::Emulator::probe != nullptr) [[unlikely]]
    simt::Emulator::probe(name, head, row, column, simt::Plain::number(value) * factor);
}
#endif

// --- the host side
// ------------------------------------------------------------------------------------------

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
          p.causal,
          p.softmax_scale(),
          strides_of(Q),
          strides_of(K),
          strides_of(V),
          strides_of(O)};
}

/// A view of the caller's [batch, heads, rows, d] tensor. Throws UsageError where a row of 16-bit numbers
/// does not start at a multiple of 16 bytes: they are copied 16 bytes at a time.
template <class T>
DeviceBuffer<T> view_of(const char* name, const Tensor& t, std::int64_t batch, std::int64_t heads,
                        std::int64_t rows, std::int64_t d) {
  if (sizeof(T) == 2 && (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0 || t.stride[0] % 8 != 0 ||
                         t.stride[1] % 8 != 0 || t.stride[2] % 8 != 0)) {
    throw UsageError(
        std::string("a row of ") + name +
        " does not start at a multiple of 16 bytes: make its strides multiples of 8 elements and "
        "align its first element to 16 bytes");
  }
  return DeviceBuffer<T>::view(
      name, static_cast<typename DeviceBuffer<T>::Host*>(t.data),
      (batch - 1) * t.stride[0] + (heads - 1) * t.stride[1] + (rows - 1) * t.stride[2] + d);
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
      : Q(view_of<T>("Q", f.Q, f.problem.batch, f.problem.q_heads, f.problem.Nq, f.problem.d)),
        K(view_of<T>("K", f.K, f.problem.batch, f.problem.kv_heads, f.problem.Nk, f.problem.d)),
        V(view_of<T>("V", f.V, f.problem.batch, f.problem.kv_heads, f.problem.Nk, f.problem.d)),
        O(view_of<T>("O", f.O, f.problem.batch, f.problem.q_heads, f.problem.Nq, f.problem.d)),
        L(DeviceBuffer<f32>::view("L", f.L, f.problem.batch * f.problem.q_heads * f.problem.Nq)),
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
      : Q(view_of<T>("Q", f.Q, f.problem.batch, f.problem.q_heads, f.problem.Nq, f.problem.d)),
        K(view_of<T>("K", f.K, f.problem.batch, f.problem.kv_heads, f.problem.Nk, f.problem.d)),
        V(view_of<T>("V", f.V, f.problem.batch, f.problem.kv_heads, f.problem.Nk, f.problem.d)),
        O(view_of<T>("O", f.O, f.problem.batch, f.problem.q_heads, f.problem.Nq, f.problem.d)),
        L(DeviceBuffer<f32>::view("L", f.L, f.problem.batch * f.problem.q_heads * f.problem.Nq)),
        dO(view_of<T>("dO", f.dO, f.problem.batch, f.problem.q_heads, f.problem.Nq, f.problem.d)),
        dQ(view_of<T>("dQ", f.dQ, f.problem.batch, f.problem.q_heads, f.problem.Nq, f.problem.d)),
        dK(view_of<T>("dK", f.dK, f.problem.batch, f.problem.kv_heads, f.problem.Nk, f.problem.d)),
        dV(view_of<T>("dV", f.dV, f.problem.batch, f.problem.kv_heads, f.problem.Nk, f.problem.d)),
        sizes{sizes_of(f.problem, f.Q, f.K, f.V, f.O), strides_of(f.dO), strides_of(f.dQ), strides_of(f.dK),
              strides_of(f.dV)},
        heads(sizes.q_heads),
        kv_heads(static_cast<int>(f.problem.kv_heads)),
        batch(static_cast<int>(f.problem.batch)) {}
};

/// Extra device memory of a stage, counted by its workspace.
class ExtraBuffer : private Workspace::Reservation, public DeviceBuffer<f32> {
 public:
  /// `elements` elements, for a Forward or a Backward. Throws OutOfMemory.
  template <class Pass>
  ExtraBuffer(const Pass& f, const char* name, std::int64_t elements)
      : Reservation(f.workspace, elements * 4), DeviceBuffer<f32>(name, elements) {
    if (f.workspace.poison) poison();
  }
};

/// What a forward pass saved for the backward pass alone: it was allocated there, and is extra memory of
/// the stage all the same.
class SavedBuffer {
 public:
  /// A view of the `elements` elements at `data`. Throws OutOfMemory where the workspace's limit is less.
  SavedBuffer(const Backward& f, const char* name, const float* data, std::int64_t elements)
      : counted_(f.workspace, elements * 4), view_(DeviceBuffer<f32>::counted_view(name, data, elements)) {}
  /// What kernels are given.
  const DeviceBuffer<f32>& view() const { return view_; }

 private:
  Workspace::Reservation counted_;
  DeviceBuffer<f32> view_;
};

/// Calls `body` with d, one of `dims`, as a compile-time constant:
/// `for_head_dim<32, 64>(d, [&](auto dim) { run<dim>(...); });`. Throws UsageError for any other d.
template <int... dims, class Body>
void for_head_dim(std::int64_t d, Body body) {
  const bool found = ((d == dims && (body(std::integral_constant<int, dims>()), true)) || ...);
  if (!found) throw UsageError("kernels are not compiled for head dimension " + std::to_string(d));
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
