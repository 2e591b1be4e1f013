#pragma once
// What the kernels of several stages need and what is no stage's topic: where a head lies in memory, the
// mask, loads of partial tiles, sums over lanes.
#include "common/attention/mask.hpp"
#include "common/attention/philox.hpp"
#include "common/ptx/cp_async.hpp"
#include "common/ptx/mma.hpp"
#include "common/simt/simt.hpp"

namespace flashladder {

// One program may hold both versions of what follows, so they need different names.
#ifdef __CUDACC__
inline namespace for_cuda {
#else
inline namespace for_emulator {
#endif

/// Strides of a [batch, heads, rows, d] tensor, in elements; that of d is 1.
struct Strides {
  std::int64_t batch;  ///< From one batch entry to the next.
  std::int64_t head;   ///< From one head to the next.
  std::int64_t row;    ///< From one row to the next.

  /// Offset of row 0 of head h of batch entry b.
  __device__ __forceinline__ std::int64_t at(int b, int h) const { return b * batch + h * head; }
};

/// Row i, of which a kernel asks which keys it sees.
__device__ __forceinline__ int asked(int i) {
#ifndef __CUDACC__
  i += simt::ask_for_row(i);  // adds 0, but where it is tried whether a kernel asks
#endif
  return i;
}

/// A Problem as a kernel needs it.
struct Sizes {
  int q_heads;  ///< Query heads.
  int group;    ///< Query heads that share a key/value head.
  int Nq;       ///< Query rows.
  int Nk;       ///< Keys.
  int d;        ///< Head dimension; a kernel's tiles may have more columns.
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
  /// Which rows see which keys.
  __device__ __forceinline__ Mask<int> mask() const { return {Nq, Nk, causal}; }
  /// One more than the last key that row i sees: it sees keys 0 ... visible_keys(i) - 1.
  __device__ __forceinline__ int visible_keys(int i) const { return mask().keys_end(asked(i)); }
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
/// A fragment of mma or wgmma gives each of the four lanes of a quad eight of 32 columns of a row: in w[x]
/// columns 8 x + 2 q and the one behind it, where q is the lane's number in the quad. The quad exchanges
/// them: afterwards the lane has columns 8 q to 8 q + 7, in order. It is the transpose of 4 x 4 words, by
/// four shuffles.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&w)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {  // of the two lanes that exchange
    const bool upper = threadIdx.x / distance % 2 != 0;   // of the two
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      if (x / distance % 2 != 0) continue;
      std::uint32_t &low = w[x], &high = w[x + distance];
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, distance);
      (upper ? low : high) = other;
    }
  }
}

/// x, of which all lanes of a warp have the same. A shuffle from lane 0 tells the compiler so, which then
/// keeps x, and what follows from it, in the registers that a warp has once for all lanes.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(~0u, x, 0);
}

/// x, of which the compiler does not know where it is from. What follows from it in a loop is computed
/// there and not kept from before the loop; x itself is kept, since it cannot be computed anew.
__device__ __forceinline__ int opaque(int x) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(x));
#endif
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

/// As load_tile, of 16-bit numbers, 16 bytes at a time; columns c ... c + 7 of row r go to swizzle(r, c).
template <int d, int threads, class T, int rows, class Pattern = AsItIs>
__device__ __forceinline__ void load_tile(smem_tile<T, rows, d>& tile,                 // [rows, d]
                                          gmem<const std::type_identity_t<T>> matrix,  // [N, d]
                                          std::int64_t stride, int row0, int N, Pattern swizzle = {}) {
  constexpr int chunks = d / 8;  // of a row
#pragma unroll
  for (int e = threadIdx.x; e < rows * chunks; e += threads) {
    const int r = e / chunks, c = e % chunks * 8;
    copy_16B<T>(tile.at(r, swizzle(r, c)), matrix + (row0 + r) * stride + c, row0 + r < N);
  }
}

/// As load_tile, of `rows` rows to row `to` of the tile and the rows after it, by copies that arrive after
/// a cp_async_commit and a cp_async_wait. `to` is a multiple of the period of `swizzle`. Columns from
/// `columns`, a multiple of 8, on become 0.
template <int rows, int d, int threads, class T, int all, class Pattern>
__device__ __forceinline__ void load_tile_async(smem_tile<T, all, d>& tile, int to,          // [all, d]
                                                gmem<const std::type_identity_t<T>> matrix,  // [N, columns]
                                                std::int64_t stride, int row0, int N, Pattern swizzle,
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
      cp_async_16B<T>(tile.at(to + i + r, swizzle(i + r, c)), from, row0 + i + r < end);
      from += step * stride;
    }
  } else {
#pragma unroll 4
    for (int e = threadIdx.x; e < rows * chunks; e += threads) {
      const int r = e / chunks, c = e % chunks * 8;
      cp_async_16B<T>(tile.at(to + r, swizzle(r, c)), matrix + (row0 + r) * stride + c,
                      row0 + r < N && c < columns);
    }
  }
}

/// Shows the checks, and a trace, an intermediate result: element (row, column) of the intermediate `name`
/// for query head `head` of all is `value` times `factor`. Nothing on a GPU.
#ifdef __CUDACC__
__device__ __forceinline__ void probe(const char*, std::int64_t, int, int, f32, float = 1) {}
#else
inline void probe(const char* name, std::int64_t head, int row, int column, f32 value, float factor = 1,
                  simt::Where where = simt::Where::here()) {
  if (simt::Emulator::probe != nullptr) [[unlikely]]
    simt::Emulator::probe(name, head, row, column, simt::Plain::number(value) * factor, where);
}
#endif

/// As probe, of rows from row0 on and 16 keys from key0 on, of which the accumulators of tensor cores hold
/// the transpose.
#ifdef __CUDACC__
template <int row_chunks>
__device__ __forceinline__ void probe_transposed(const char*, std::int64_t, int, int,
                                                 const f32 (&)[row_chunks][4], int) {}
#else
template <int row_chunks>
void probe_transposed(const char* name, std::int64_t head, int row0, int key0,
                      const f32 (&x)[row_chunks][4], int lane, simt::Where where = simt::Where::here()) {
  if (simt::Emulator::probe == nullptr) [[likely]]
    return;
  for (int c = 0; c < row_chunks; ++c) {
    for (int e = 0; e < 4; ++e)
      probe(name, head, row0 + 8 * c + 2 * (lane % 4) + e % 2, key0 + lane / 4 + e / 2 * 8, x[c][e], 1,
            where);
  }
}
#endif

}  // namespace for_emulator
}  // namespace flashladder
