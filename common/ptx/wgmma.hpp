#pragma once
// wgmma: matrix products of a warpgroup, four warps one after the other in a block, that the tensor cores
// do while its threads go on. (PTX ISA, asynchronous warpgroup level matrix instructions, wgmma.mma_async.)
//
// C [64, N] += A [64, 16] B [16, N] with 16-bit operands and fp32 sums, N a multiple of 16 up to 256. B is
// in shared memory, A there or in registers, C in registers: the warpgroup's warp w holds rows 16 w to 16 w
// + 15 of A and C, as mma.hpp says of A [16, 16] and of the N / 8 fragments C [16, 8] side by side.
//
//   wgmma_fence();                       what threads did with C and A is done
//   wgmma<T>(C, A, B); wgmma<T>(...);    begin; those that add to one C do so in this order
//   wgmma_commit();                      makes them a group
//   wgmma_wait<0>(C);                    no group is under way any more, and C is there
//
// In between, C must not be touched, nor must the shared memory be written. The units read it through the
// async proxy: see fence_proxy_async().
//
// A matrix descriptor says where a matrix lies in shared memory. Its rows lie below each other, each of 32,
// 64 or 128 bytes, 8 rows in a pattern in which chunks of 16 bytes change places, as TMA writes it with a
// swizzle of as many bytes. K-major: a row runs along the product's inner dimension, as those of Q and K in
// Q K^T. MN-major: along the other one, as those of V in P V.
#include "common/ptx/proxy_fence.hpp"
#include "common/ptx/stamp.hpp"
#if defined(__CUDACC__)
#include "common/ptx/wgmma_asm.hpp"
#endif

namespace flashladder {

/// What the rows of a matrix in shared memory run along.
enum class Major {
  k,  ///< The inner dimension.
  mn  ///< The other one: that of the rows of A, or of the columns of B.
};

#if defined(__CUDACC__)

inline namespace for_cuda {

/// Where a matrix lies in shared memory. (PTX ISA, asynchronous warpgroup level matrix shared memory
/// layout, matrix descriptor.)
template <Major major>
struct matrix_descriptor {
  unsigned long long bits;  ///< Address, two strides, and the swizzle.

  /// The matrix that begins `bytes` bytes further on, a multiple of 16.
  __device__ __forceinline__ matrix_descriptor operator+(int bytes) const {
    return {bits + static_cast<unsigned>(bytes >> 4)};  // a division would take more instructions
  }
};

/// A descriptor: 8 rows of `row_bytes` bytes make a pattern, patterns follow each other, and panels, where
/// there are more columns than in a row, begin `panel_bytes` bytes apart. By a shuffle the compiler knows
/// that all lanes have the same address: it computes the descriptor once, and not before each wgmma.
template <Major major, int row_bytes, class T>
__device__ __forceinline__ matrix_descriptor<major> describe(const T* p, int panel_bytes) {
  static_assert(row_bytes == 32 || row_bytes == 64 || row_bytes == 128, "a swizzle of 32, 64 or 128 bytes");
  constexpr unsigned long long swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  constexpr unsigned long long pattern = 8 * row_bytes;
  const unsigned address = __shfl_sync(~0u, static_cast<unsigned>(__cvta_generic_to_shared(p)), 0);
  const unsigned long long lead = static_cast<unsigned>(panel_bytes) / 16;
  return {(address & 0x3ffffu) / 16 | lead << 16 | pattern / 16 << 32 | swizzle << 62};
}

/// A matrix whose rows, of row_bytes bytes, run along the inner dimension. An A or B of a wgmma are 32
/// bytes of each row; those of the next 16 of the inner dimension begin 32 bytes further on. All lanes of a
/// warp execute it, with the same address: it is one shuffle.
template <int row_bytes, class T>
__device__ __forceinline__ matrix_descriptor<Major::k> k_major(const T* p) {
  return describe<Major::k, row_bytes>(p, 16);
}
/// A matrix whose rows, of row_bytes bytes, run along the other dimension; where that is longer, the next
/// panel of row_bytes bytes a row begins `panel_bytes` bytes behind the one before. An A or B of a wgmma
/// are 16 rows; those of the next 16 of the inner dimension begin 16 row_bytes further on. Executed as
/// k_major.
template <int row_bytes, class T>
__device__ __forceinline__ matrix_descriptor<Major::mn> mn_major(const T* p, int panel_bytes) {
  return describe<Major::mn, row_bytes>(p, panel_bytes);
}

/// Begins C += A B, or C = A B where not `add`.
template <class T, int n8, Major a, Major b>
__device__ __forceinline__ void wgmma(float (&C)[n8][4], matrix_descriptor<a> A, matrix_descriptor<b> B,
                                      bool add = true) {
  Wgmma<T, n8>::template shared<a == Major::mn, b == Major::mn>(C, A.bits, B.bits, add);
}
/// Begins C += A B, or C = A B where not `add`, with A in registers.
template <class T, int n8, Major b>
__device__ __forceinline__ void wgmma(float (&C)[n8][4], const std::uint32_t (&A)[4],
                                      matrix_descriptor<b> B, bool add = true) {
  Wgmma<T, n8>::template registers<b == Major::mn>(C, A, B.bits, add);
}

/// What this thread has done with registers has happened for the wgmmas that follow. It stands before the
/// first wgmma, and before one that uses registers as C or A which the thread has used since.
__device__ __forceinline__ void wgmma_fence() {
  stamp(Stamp::fence);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Makes a group of the wgmmas since the last group.
__device__ __forceinline__ void wgmma_commit() {
  stamp(Stamp::commit);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Tells the compiler that these registers may change here.
template <int n8>
__device__ __forceinline__ void may_change(float (&C)[n8][4]) {
#pragma unroll
  for (auto& four : C)
    asm volatile("" : "+f"(four[0]), "+f"(four[1]), "+f"(four[2]), "+f"(four[3])::"memory");
}

/// Waits until at most the `pending` youngest groups are under way. Then the accumulators C, of older ones,
/// are there: the compiler, which knows nothing of a wait, must not move what uses them before it.
template <int pending, int... n8>
__device__ __forceinline__ void wgmma_wait(float (&... C)[n8][4]) {
  stamp(Stamp::wait_groups);
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (may_change(C), ...);
  stamp(Stamp::goes_on);
}

}  // namespace for_cuda

#else

namespace simt {

/// Where a matrix lies in shared memory, as the emulator has it.
struct MatrixInShared {
  SharedArray* array = nullptr;  ///< That it lies in.
  std::int64_t offset = 0;       ///< Bytes from the start of the block's shared memory.
  std::int64_t row_bytes = 0;    ///< Of a row of a panel, and of the swizzle.
  std::int64_t panel_bytes = 0;  ///< From one panel to the next.
  bool mn_major = false;         ///< Rows run along the dimension that is not the inner one.
  Where where;                   ///< Where it was described.
};

/// What a thread brings to a wgmma.
struct WgmmaOperands {
  f32* C;                            ///< Its accumulators: [columns / 8][4].
  int columns;                       ///< N.
  const std::uint32_t* A_registers;  ///< Its four registers of A; nullptr: A is in shared memory.
  MatrixInShared A;                  ///< Where it is there.
  MatrixInShared B;                  ///< In shared memory.
  bool bf16;                         ///< What A and B hold; else f16.
  bool add;                          ///< C += A B; else C = A B.
};

/// Accumulators that a thread waits for.
struct Accumulators {
  f32* C;       ///< As in WgmmaOperands.
  int columns;  ///< N.
};

/// A matrix that begins at an address.
MatrixInShared describe(SharedArray* array, const std::byte* at, std::int64_t row_bytes,
                        std::int64_t panel_bytes, bool mn_major, Where where);
/// Executes wgmma.
void begin_wgmma(const WgmmaOperands& mine, Where where);
/// Executes wgmma_fence.
void fence_wgmma();
/// Executes wgmma_commit.
void commit_wgmmas();
/// Executes wgmma_wait.
void wait_for_wgmmas(std::size_t pending, std::initializer_list<Accumulators> named, Where where);

}  // namespace simt

inline namespace for_emulator {

/// Where a matrix lies in shared memory. (PTX ISA, asynchronous warpgroup level matrix shared memory
/// layout, matrix descriptor.)
template <Major major>
struct matrix_descriptor {
  simt::MatrixInShared matrix;  ///< Address, two strides, and the swizzle.

  /// The matrix that begins `bytes` bytes further on, a multiple of 16.
  matrix_descriptor operator+(int bytes) const {
    matrix_descriptor moved = *this;
    moved.matrix.offset += bytes;
    return moved;
  }
};

/// A matrix whose rows, of row_bytes bytes, run along the inner dimension. An A or B of a wgmma are 32
/// bytes of each row; those of the next 16 of the inner dimension begin 32 bytes further on. All lanes of a
/// warp execute it, with the same address: it is one shuffle.
template <int row_bytes, class T>
matrix_descriptor<Major::k> k_major(simt::smem<T> p, simt::Where where = simt::Where::here()) {
  static_assert(row_bytes == 32 || row_bytes == 64 || row_bytes == 128, "a swizzle of 32, 64 or 128 bytes");
  simt::shuffle("k_major", ~0u, 0, 0, where);
  return {simt::describe(p.array(), reinterpret_cast<const std::byte*>(p.template find<1>(0, where)),
                         row_bytes, 16, false, where)};
}
/// A matrix whose rows, of row_bytes bytes, run along the other dimension; where that is longer, the next
/// panel of row_bytes bytes a row begins `panel_bytes` bytes behind the one before. An A or B of a wgmma
/// are 16 rows; those of the next 16 of the inner dimension begin 16 row_bytes further on. Executed as
/// k_major.
template <int row_bytes, class T>
matrix_descriptor<Major::mn> mn_major(simt::smem<T> p, int panel_bytes,
                                      simt::Where where = simt::Where::here()) {
  static_assert(row_bytes == 32 || row_bytes == 64 || row_bytes == 128, "a swizzle of 32, 64 or 128 bytes");
  simt::shuffle("mn_major", ~0u, 0, 0, where);
  return {simt::describe(p.array(), reinterpret_cast<const std::byte*>(p.template find<1>(0, where)),
                         row_bytes, panel_bytes, true, where)};
}

/// Begins C += A B, or C = A B where not `add`.
template <class T, int n8, Major a, Major b>
void wgmma(f32 (&C)[n8][4], matrix_descriptor<a> A, matrix_descriptor<b> B, bool add = true,
           simt::Where where = simt::Where::here()) {
  static_assert(n8 % 2 == 0 && n8 <= 32, "N is a multiple of 16 up to 256");
  simt::begin_wgmma({C[0], 8 * n8, nullptr, A.matrix, B.matrix, std::is_same_v<T, bf16>, add}, where);
}
/// Begins C += A B, or C = A B where not `add`, with A in registers.
template <class T, int n8, Major b>
void wgmma(f32 (&C)[n8][4], const std::uint32_t (&A)[4], matrix_descriptor<b> B, bool add = true,
           simt::Where where = simt::Where::here()) {
  static_assert(n8 % 2 == 0 && n8 <= 32, "N is a multiple of 16 up to 256");
  simt::begin_wgmma({C[0], 8 * n8, A, {}, B.matrix, std::is_same_v<T, bf16>, add}, where);
}

/// What this thread has done with registers has happened for the wgmmas that follow. It stands before the
/// first wgmma, and before one that uses registers as C or A which the thread has used since.
inline void wgmma_fence() {
  simt::fence_wgmma();
}

/// Makes a group of the wgmmas since the last group.
inline void wgmma_commit() {
  simt::commit_wgmmas();
}

/// Waits until at most the `pending` youngest groups are under way.
template <int pending>
void wgmma_wait(simt::Where where = simt::Where::here()) {
  simt::wait_for_wgmmas(pending, {}, where);
}
/// Waits until at most the `pending` youngest groups are under way. Then the accumulators C, of older ones,
/// are there.
template <int pending, int n8>
void wgmma_wait(f32 (&C)[n8][4], simt::Where where = simt::Where::here()) {
  simt::wait_for_wgmmas(pending, {{C[0], 8 * n8}}, where);
}
/// As with one C.
template <int pending, int n8, int n8_too>
void wgmma_wait(f32 (&C)[n8][4], f32 (&C_too)[n8_too][4], simt::Where where = simt::Where::here()) {
  simt::wait_for_wgmmas(pending, {{C[0], 8 * n8}, {C_too[0], 8 * n8_too}}, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
