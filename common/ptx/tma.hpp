#pragma once
// TMA: a unit of the SM that copies boxes of a tensor between global and shared memory. One thread tells it
// what to do and goes on. (PTX ISA, data movement instructions, cp.async.bulk.tensor.)
//
// A *tensor map* says where a tensor lies and how it is cut into boxes; the host makes it
// (common/ptx/tensor_map.hpp), and a kernel takes it as `const __grid_constant__ tensor_map map`.
// Coordinates are those of the box's first element, the fastest first. What of a box is outside the tensor
// is filled with zeros in a load, and left out in a store. A *bulk reduction* knows no tensor: it adds
// bytes that lie in a row.
//
// What a thread has written to shared memory the unit is sure to see only behind a fence_proxy_async() of
// that thread.
#include "common/ptx/mbarrier.hpp"
#include "common/ptx/proxy_fence.hpp"

namespace flashladder {

#if defined(__CUDACC__)

inline namespace for_cuda {

/// Where a tensor of four dimensions lies, and its boxes.
struct alignas(128) tensor_map {
  unsigned long long words[16];  ///< A CUtensorMap, whose header is one of the host.
};

/// Announces `bytes` bytes that copies will bring in this phase of the mbarrier, and is one arrival.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(mbarrier* bar, int bytes) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  stamp(Stamp::mbarrier_arrive);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
               : "memory");
}

/// Begins to load the box at (c0, c1, c2, c3) to shared memory, which begins at a multiple of 128 bytes;
/// the mbarrier gets the bytes of a whole box.
template <class T>
__device__ __forceinline__ void tma_load(T* to, const tensor_map& map, mbarrier* bar, int c0, int c1,
                                         int c2, int c3) {
  stamp(Stamp::load);
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, "
      "%5, %6}], [%2];" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(bar))), "r"(c0), "r"(c1), "r"(c2),
      "r"(c3)
      : "memory");
}

/// Begins to store a box of shared memory at (c0, c1, c2, c3).
template <class T>
__device__ __forceinline__ void tma_store(const tensor_map& map, const T* from, int c0, int c1, int c2,
                                          int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Begins to add `bytes` bytes of shared memory to global memory, each number as one operation. A multiple
/// of 16 bytes, from and to addresses that are multiples of 16. (PTX ISA, data movement instructions,
/// cp.reduce.async.bulk.)
__device__ __forceinline__ void bulk_reduce_add(f32* to, const f32* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))), "r"(bytes)
               : "memory");
}

/// Makes a group of the thread's stores and bulk reductions since the last group.
__device__ __forceinline__ void tma_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until of the thread's groups at most the N youngest still read shared memory.
template <int N>
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

}  // namespace for_cuda

#else

namespace simt {

/// A tensor map, as the emulator has it.
struct TensorMap {
  GlobalBuffer* buffer = nullptr;  ///< That the tensor is in.
  std::int64_t offset = 0;         ///< Bytes from the buffer's start to element (0, 0, 0, 0).
  std::int64_t element_bytes = 0;  ///< 2 or 4.
  std::int64_t dims[4] = {};       ///< Elements.
  std::int64_t strides[4] = {};    ///< Bytes from one element to the next; the first is element_bytes.
  std::int64_t box[4] = {};        ///< Elements of a box.
  std::int64_t swizzle = 0;        ///< Bytes within which chunks of 16 change places: 128, 64, 32; 0: none.

  /// Bytes of a box.
  std::int64_t box_bytes() const { return box[0] * box[1] * box[2] * box[3] * element_bytes; }
};

/// Executes mbarrier_arrive_expect_tx.
void expect_at_mbarrier(SharedArray* array, std::byte* at, int bytes, Where where);
/// Executes tma_load, or tma_load_multicast to the blocks of these ranks; `to` is of an array of the
/// running block that ends `bytes` bytes behind it.
void load_box(unsigned first_rank, unsigned ranks, SharedArray* array, std::byte* to, std::int64_t bytes,
              const TensorMap& map, SharedArray* bar_array, std::byte* bar, const int (&at)[4],
              Where where);
/// A copy of so many bytes begins, which come with the phase that is under way of an mbarrier.
void begin_bytes(Mbarrier& bar, std::int64_t bytes, Where where);
/// They have come.
void end_bytes(Mbarrier& bar, std::int64_t bytes);
/// Until then a unit writes them from byte `offset` of shared memory on, which nobody else must use.
void write_by_unit(const Mbarrier& bar, SharedArray& array, std::uint32_t offset, std::int64_t bytes,
                   std::int64_t swizzle, Where where);
/// Executes tma_store.
void store_box(const TensorMap& map, SharedArray* array, const std::byte* from, std::int64_t bytes,
               const int (&at)[4], Where where);
/// Executes bulk_reduce_add; `to` and `from` have `bytes` bytes.
void reduce_bulk(gmem<f32> to, SharedArray* array, const std::byte* from, int bytes, Where where);
/// Executes tma_commit.
void commit_stores();
/// Executes tma_wait_read.
void wait_for_store_reads(std::size_t pending);

/// Bytes from a place to the end of its array.
template <class T>
std::int64_t bytes_behind(smem<T> p) {
  return static_cast<std::int64_t>(p.array()->bytes) - p.offset() * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace simt

inline namespace for_emulator {

/// Where a tensor of four dimensions lies, and its boxes.
using tensor_map = simt::TensorMap;

/// Announces `bytes` bytes that copies will bring in this phase of the mbarrier, and is one arrival.
inline void mbarrier_arrive_expect_tx(simt::smem<mbarrier> bar, int bytes,
                                      simt::Where where = simt::Where::here()) {
  simt::expect_at_mbarrier(bar.array(), reinterpret_cast<std::byte*>(bar.find<1>(0, where)), bytes, where);
}

/// Begins to load the box at (c0, c1, c2, c3) to shared memory, which begins at a multiple of 128 bytes;
/// the mbarrier gets the bytes of a whole box.
template <class T>
void tma_load(simt::smem<T> to, const tensor_map& map, simt::smem<mbarrier> bar, int c0, int c1, int c2,
              int c3, simt::Where where = simt::Where::here()) {
  simt::load_box(simt::running.thread->block->rank, 1, to.array(),
                 reinterpret_cast<std::byte*>(to.template find<1>(0, where)), simt::bytes_behind(to), map,
                 bar.array(), reinterpret_cast<std::byte*>(bar.find<1>(0, where)), {c0, c1, c2, c3}, where);
}

/// Begins to store a box of shared memory at (c0, c1, c2, c3).
template <class T>
void tma_store(const tensor_map& map, simt::smem<T> from, int c0, int c1, int c2, int c3,
               simt::Where where = simt::Where::here()) {
  simt::store_box(map, from.array(), reinterpret_cast<const std::byte*>(from.template find<1>(0, where)),
                  simt::bytes_behind(from), {c0, c1, c2, c3}, where);
}

/// Begins to add `bytes` bytes of shared memory to global memory, each number as one operation. A multiple
/// of 16 bytes, from and to addresses that are multiples of 16. (PTX ISA, data movement instructions,
/// cp.reduce.async.bulk.)
inline void bulk_reduce_add(simt::gmem<f32> to, simt::smem<f32> from, int bytes,
                            simt::Where where = simt::Where::here()) {
  simt::reduce_bulk(to, from.array(), reinterpret_cast<const std::byte*>(from.find<4>(0, where)), bytes,
                    where);
}

/// Makes a group of the thread's stores and bulk reductions since the last group.
inline void tma_commit() {
  simt::commit_stores();
}

/// Waits until of the thread's groups at most the N youngest still read shared memory.
template <int N>
void tma_wait_read() {
  simt::wait_for_store_reads(N);
}

}  // namespace for_emulator

#endif

}  // namespace flashladder
