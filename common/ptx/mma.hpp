#pragma once
// Tensor cores: mma.sync.m16n8k16 with 16-bit operands and fp32 sums, ldmatrix, and what packs 16-bit
// numbers into registers. (PTX ISA, warp-level matrix instructions.) T is f16 or bf16 throughout.
//
// A 32-bit register of a fragment holds two neighbours, the first in the low half. Four neighbouring lanes
// are a quad: lane = 4 quad + quad_lane, quad = 0 ... 7 (PTX: groupID), quad_lane = 0 ... 3
// (threadID_in_group). With k = 2 quad_lane a lane holds of
//
//     A [16, 16]   a[0]: row quad     columns k, k+1      a[2]: row quad     columns k+8, k+9
//                  a[1]: row quad+8   columns k, k+1      a[3]: row quad+8   columns k+8, k+9
//     B [16, 8]    b[0]: rows k, k+1   column quad        b[1]: rows k+8, k+9   column quad
//     C [16, 8]    c[0], c[1]: row quad     columns k, k+1
//                  c[2], c[3]: row quad+8   columns k, k+1
//
// Two C side by side, each packed, are an A: that is how P goes from one product to the next in registers.
#include "common/simt/simt.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// C += A B for a warp.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Loads four 8 x 8 matrices from shared memory. Lane 8 j + i gives the address of row i of matrix j, 16
/// bytes; lane 4 quad + quad_lane receives in r[j]
/// columns 2 quad_lane and 2 quad_lane + 1 of row quad of matrix j.
template <class T>
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const T* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// As ldmatrix_x4, transposed: lane 4 quad + quad_lane receives in r[j] rows 2 quad_lane and
/// 2 quad_lane + 1 of column quad of matrix j.
template <class T>
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], const T* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Two numbers in one register, `low` in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t pair(T low, T high) {
  std::uint16_t bits[2];
  memcpy(&bits[0], &low, 2);
  memcpy(&bits[1], &high, 2);
  return bits[0] | static_cast<std::uint32_t>(bits[1]) << 16;
}

/// Two fp32 numbers rounded to T in one register, `low` in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t round_pair(float low, float high) {
  std::uint32_t both;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

/// The two numbers from p on, as one access of 4 bytes.
template <class T>
__device__ __forceinline__ std::uint32_t load_pair(const T* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}
/// Stores two numbers from p on, as one access of 4 bytes.
template <class T>
__device__ __forceinline__ void store_pair(T* p, std::uint32_t both) {
  *reinterpret_cast<std::uint32_t*>(p) = both;
}
/// The eight numbers from p on, widened to fp32, as one access of 16 bytes.
template <class T>
__device__ __forceinline__ void load_eight(float (&x)[8], const T* p) {
  const int4 all = *reinterpret_cast<const int4*>(p);
  T numbers[8];
  memcpy(numbers, &all, 16);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = static_cast<float>(numbers[i]);
}
/// Stores eight fp32 numbers, rounded to T, from p on, as one access of 16 bytes.
template <class T>
__device__ __forceinline__ void store_eight(T* p, const float (&x)[8]) {
  *reinterpret_cast<uint4*>(p) = make_uint4(round_pair<T>(x[0], x[1]), round_pair<T>(x[2], x[3]),
                                            round_pair<T>(x[4], x[5]), round_pair<T>(x[6], x[7]));
}
/// Copies 16 bytes from global to shared memory through registers; where not `valid`, writes zeros and
/// reads nothing.
template <class T>
__device__ __forceinline__ void copy_16B(T* to, const T* from, bool valid = true) {
  int4 all = make_int4(0, 0, 0, 0);
  if (valid) all = *reinterpret_cast<const int4*>(from);
  *reinterpret_cast<int4*>(to) = all;
}
/// Copies 16 bytes from shared to global memory; where not `valid`, writes nothing.
template <class T>
__device__ __forceinline__ void store_16B(T* to, const T* from, bool valid) {
  const int4 all = *reinterpret_cast<const int4*>(from);
  if (valid) *reinterpret_cast<int4*>(to) = all;
}
/// Stores the eight numbers of which each word has two, as one access of 16 bytes; where not `valid`,
/// nothing.
template <class T>
__device__ __forceinline__ void store_16B(T* to, const std::uint32_t (&words)[4], bool valid) {
  if (valid) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace for_cuda

#else

namespace simt {

/// Whether the thread has asynchronous copies under way.
bool is_copying();

/// What a lane brings to mma_m16n8k16.
struct MmaOperands {
  f32* c;                  ///< Its four sums.
  const std::uint32_t* a;  ///< Its four registers of A.
  const std::uint32_t* b;  ///< Its two registers of B.
  bool copying;            ///< It has asynchronous copies under way.
};
/// Executes mma_m16n8k16. (mma.cpp has it for f16 and bf16.)
template <class T>
void multiply_fragments(MmaOperands mine, Where where);

/// What a lane brings to ldmatrix, a row of 8 numbers, and what it receives.
struct LdmatrixOperands {
  const std::byte* row;  ///< Its address.
  std::uint32_t* r;      ///< Four registers.
};
/// Executes ldmatrix_x4.
void load_matrices(LdmatrixOperands mine, bool transposed, Where where);

}  // namespace simt

inline namespace for_emulator {

/// C += A B for a warp.
template <class T>
void mma_m16n8k16(f32 (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  simt::Where where = simt::Where::here()) {
  simt::multiply_fragments<T>({c, a, b, simt::is_copying()}, where);
}

/// Loads four 8 x 8 matrices from shared memory. Lane 8 j + i gives the address of row i of matrix j, 16
/// bytes; lane 4 quad + quad_lane receives in r[j]
/// columns 2 quad_lane and 2 quad_lane + 1 of row quad of matrix j.
template <class T>
void ldmatrix_x4(std::uint32_t (&r)[4], simt::smem<T> row, simt::Where where = simt::Where::here()) {
  static_assert(sizeof(T) == 2, "a row is 8 numbers of 16 bits");
  simt::load_matrices({reinterpret_cast<const std::byte*>(row.template read<8>(where)), r}, false, where);
}
/// As ldmatrix_x4, transposed: lane 4 quad + quad_lane receives in r[j] rows 2 quad_lane and
/// 2 quad_lane + 1 of column quad of matrix j.
template <class T>
void ldmatrix_x4_trans(std::uint32_t (&r)[4], simt::smem<T> row, simt::Where where = simt::Where::here()) {
  static_assert(sizeof(T) == 2, "a row is 8 numbers of 16 bits");
  simt::load_matrices({reinterpret_cast<const std::byte*>(row.template read<8>(where)), r}, true, where);
}

/// Two numbers in one register, `low` in the low half.
template <class T>
std::uint32_t pair(T low, T high) {
  return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}
/// Two fp32 numbers rounded to T in one register, `low` in the low half.
template <class T>
std::uint32_t round_pair(f32 low, f32 high) {
  if (simt::running.thread != nullptr) simt::running.thread->wgmma_fenced = false;  // it may be of an A
  return pair(T(low), T(high));
}

/// The two numbers from p on, as one access of 4 bytes.
template <class T>
std::uint32_t load_pair(simt::smem<T> p, simt::Where where = simt::Where::here()) {
  std::uint32_t both;
  std::memcpy(&both, p.template read<2>(where), sizeof both);
  return both;
}
/// Stores two numbers from p on, as one access of 4 bytes.
template <class T>
void store_pair(simt::gmem<T> p, std::uint32_t both, simt::Where where = simt::Where::here()) {
  simt::gmem<T>::template check<2>(p.buffer(), p.offset(), where);
  simt::gmem<T>::template store<std::uint32_t>(p.buffer(), p.offset(), both, where);
}
/// Stores two numbers from p on, as one access of 4 bytes.
template <class T>
void store_pair(simt::smem<T> p, std::uint32_t both, simt::Where where = simt::Where::here()) {
  std::memcpy(p.template write<2>(where), &both, sizeof both);
}
/// The eight numbers from p on, widened to fp32, as one access of 16 bytes.
template <class T>
void load_eight(f32 (&x)[8], simt::gmem<const T> p, simt::Where where = simt::Where::here()) {
  struct alignas(16) Numbers {
    T of[8];
  };
  simt::gmem<const T>::template check<8>(p.buffer(), p.offset(), where);
  const Numbers all = simt::gmem<const T>::template load<Numbers>(p.buffer(), p.offset(), where);
  for (int i = 0; i < 8; ++i) x[i] = static_cast<f32>(all.of[i]);
}
/// Stores eight fp32 numbers, rounded to T, from p on, as one access of 16 bytes.
template <class T>
void store_eight(simt::gmem<T> p, const f32 (&x)[8], simt::Where where = simt::Where::here()) {
  struct alignas(16) Numbers {
    T of[8];
  } all;
  for (int i = 0; i < 8; ++i) all.of[i] = T(x[i]);
  simt::gmem<T>::template check<8>(p.buffer(), p.offset(), where);
  simt::gmem<T>::template store<Numbers>(p.buffer(), p.offset(), all, where);
}
/// Copies 16 bytes from global to shared memory through registers; where not `valid`, writes zeros and
/// reads nothing.
template <class T>
void copy_16B(simt::smem<T> to, simt::gmem<const std::type_identity_t<T>> from, bool valid = true,
              simt::Where where = simt::Where::here()) {
  struct alignas(16) Bytes {
    std::byte of[16] = {};
  } all;
  if (valid) {
    simt::gmem<const T>::template check<8>(from.buffer(), from.offset(), where);
    all = simt::gmem<const T>::template load<Bytes>(from.buffer(), from.offset(), where);
  }
  std::memcpy(to.template write<8>(where), &all, sizeof all);
}
/// Copies 16 bytes from shared to global memory; where not `valid`, writes nothing.
template <class T>
void store_16B(simt::gmem<T> to, simt::smem<T> from, bool valid, simt::Where where = simt::Where::here()) {
  struct alignas(16) Bytes {
    std::byte of[16];
  } all;
  std::memcpy(&all, from.template read<8>(where), sizeof all);
  if (!valid) return;
  simt::gmem<T>::template check<8>(to.buffer(), to.offset(), where);
  simt::gmem<T>::template store<Bytes>(to.buffer(), to.offset(), all, where);
}
/// Stores the eight numbers of which each word has two, as one access of 16 bytes; where not `valid`,
/// nothing.
template <class T>
void store_16B(simt::gmem<T> to, const std::uint32_t (&words)[4], bool valid,
               simt::Where where = simt::Where::here()) {
  struct alignas(16) Words {
    std::uint32_t of[4];
  } all;
  std::memcpy(&all, words, sizeof all);
  if (!valid) return;
  simt::gmem<T>::template check<8>(to.buffer(), to.offset(), where);
  simt::gmem<T>::template store<Words>(to.buffer(), to.offset(), all, where);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
