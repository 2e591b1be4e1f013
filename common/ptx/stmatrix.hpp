#pragma once
// stmatrix: what ldmatrix (mma.hpp) undoes. A warp stores fragments of four 8 x 8 matrices to shared
// memory. (PTX ISA, warp-level matrix instructions, stmatrix.) T is f16 or bf16.
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// Stores four 8 x 8 matrices to shared memory. Lane 8 j + i gives the address of row i of matrix j, 16
/// bytes; lane 4 quad + quad_lane gives in r[j] columns 2 quad_lane and 2 quad_lane + 1 of row quad of
/// matrix j.
template <class T>
__device__ __forceinline__ void stmatrix_x4(T* row, const std::uint32_t (&r)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// As stmatrix_x4, transposed: lane 4 quad + quad_lane gives in r[j] rows 2 quad_lane and 2 quad_lane + 1
/// of column quad of matrix j.
template <class T>
__device__ __forceinline__ void stmatrix_x4_trans(T* row, const std::uint32_t (&r)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace for_cuda

#else

namespace simt {

/// What a lane brings to stmatrix.
struct StmatrixOperands {
  std::byte* row;          ///< Address of a row of 8 numbers.
  const std::uint32_t* r;  ///< Four registers.
};
/// Executes stmatrix_x4.
void store_matrices(StmatrixOperands mine, bool transposed, Where where);

}  // namespace simt

inline namespace for_emulator {

/// Stores four 8 x 8 matrices to shared memory. Lane 8 j + i gives the address of row i of matrix j, 16
/// bytes; lane 4 quad + quad_lane gives in r[j] columns 2 quad_lane and 2 quad_lane + 1 of row quad of
/// matrix j. For races and counts a row is written by the lane that gives its address.
template <class T>
void stmatrix_x4(simt::smem<T> row, const std::uint32_t (&r)[4], simt::Where where = simt::Where::here()) {
  static_assert(sizeof(T) == 2, "a row is 8 numbers of 16 bits");
  simt::store_matrices({reinterpret_cast<std::byte*>(row.template write<8>(where)), r}, false, where);
}
/// As stmatrix_x4, transposed: lane 4 quad + quad_lane gives in r[j] rows 2 quad_lane and 2 quad_lane + 1
/// of column quad of matrix j.
template <class T>
void stmatrix_x4_trans(simt::smem<T> row, const std::uint32_t (&r)[4],
                       simt::Where where = simt::Where::here()) {
  static_assert(sizeof(T) == 2, "a row is 8 numbers of 16 bits");
  simt::store_matrices({reinterpret_cast<std::byte*>(row.template write<8>(where)), r}, true, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
