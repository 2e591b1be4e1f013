#pragma once
#include <bit>
#include <cstdint>

#include "common/simt/block.hpp"

namespace flashladder::simt {

/// The running lane comes to a warp instruction. Returns the meeting to the last lane of `mask` to come,
/// which executes the instruction for all and calls finish(); returns nullptr to the others, once that is
/// done. Throws KernelError when the lanes' instructions conflict.
Meeting* meet(std::uint32_t mask, const char* name, Where where, void* operands);

/// Ends a meeting: the lanes' accesses since the last one are put together, and all go on.
void finish(Meeting& meeting);

/// A warp instruction: each lane of `mask` comes with its operands; the last one calls `execute` with an
/// array of 32 pointers to them, by lane.
template <class Operands, class Execute>
void collective(std::uint32_t mask, const char* name, Where where, Operands& mine, Execute&& execute) {
  if (Meeting* meeting = meet(mask, name, where, &mine)) {
    execute(reinterpret_cast<Operands* const*>(meeting->operands.data()));
    finish(*meeting);
  }
}

/// What a lane brings to a shuffle, and what it receives.
struct ShuffleOperands {
  std::uint32_t value;   ///< What it has.
  std::uint32_t result;  ///< What it gets.
  unsigned source;       ///< Whose value it wants.
};

/// Executes a shuffle; returns the value of lane `source`.
std::uint32_t shuffle_bits(const char* name, std::uint32_t mask, std::uint32_t value, unsigned source,
                           Where where);

/// A shuffle of any 4-byte value.
template <class T>
T shuffle(const char* name, std::uint32_t mask, T value, unsigned source, Where where) {
  static_assert(sizeof(T) == 4, "shuffles move 4-byte values");
  return std::bit_cast<T>(shuffle_bits(name, mask, std::bit_cast<std::uint32_t>(value), source, where));
}

/// The source lane of a shuffle in groups of `width` lanes (a power of two): `wanted`, or the lane itself
/// when that is outside its group.
constexpr unsigned shuffle_source(unsigned lane, int wanted, int width) {
  const int group = ~(width - 1);
  return (wanted & group) == (static_cast<int>(lane) & group) ? static_cast<unsigned>(wanted) : lane;
}

/// bar.sync (`waits`) and bar.arrive: `threads` threads complete barrier number `id` of the block (0:
/// __syncthreads).
void barrier(unsigned id, unsigned threads, bool waits, const char* name, Where where);

/// In traces, the number of the barrier that a cluster's blocks have together.
inline constexpr unsigned barrier_of_cluster = 16;
/// Waits for all threads of the cluster.
void synchronise_cluster(Where where);

/// __syncwarp.
void synchronise_warp(std::uint32_t mask, Where where);

}  // namespace flashladder::simt

/// Waits for all threads of the block.
inline void __syncthreads(flashladder::simt::Where where = flashladder::simt::Where::here()) {
  flashladder::simt::barrier(0, flashladder::simt::running.cluster->block_threads, true, "__syncthreads",
                             where);
}
/// Waits for the lanes in `mask`, and makes their shared memory writes visible to each other.
inline void __syncwarp(unsigned mask = ~0u,
                       flashladder::simt::Where where = flashladder::simt::Where::here()) {
  flashladder::simt::synchronise_warp(mask, where);
}
/// The value of lane `source` of the group of `width` lanes.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              flashladder::simt::Where where = flashladder::simt::Where::here()) {
  const int lane = static_cast<int>(flashladder::simt::running.thread->lane);
  const int wanted = (lane & ~(width - 1)) | (source & (width - 1));
  return flashladder::simt::shuffle("__shfl_sync", mask, value, static_cast<unsigned>(wanted), where);
}
/// The value of the lane whose number differs in the bits of `lane_mask`.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  flashladder::simt::Where where = flashladder::simt::Where::here()) {
  const unsigned lane = flashladder::simt::running.thread->lane;
  const unsigned source =
      flashladder::simt::shuffle_source(lane, static_cast<int>(lane) ^ lane_mask, width);
  return flashladder::simt::shuffle("__shfl_xor_sync", mask, value, source, where);
}
/// The value of the lane `delta` above; its own at the group's end.
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   flashladder::simt::Where where = flashladder::simt::Where::here()) {
  const unsigned lane = flashladder::simt::running.thread->lane;
  const unsigned source = flashladder::simt::shuffle_source(lane, static_cast<int>(lane + delta), width);
  return flashladder::simt::shuffle("__shfl_down_sync", mask, value, source, where);
}
/// The value of the lane `delta` below; its own at the group's start.
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 flashladder::simt::Where where = flashladder::simt::Where::here()) {
  const unsigned lane = flashladder::simt::running.thread->lane;
  const unsigned source =
      flashladder::simt::shuffle_source(lane, static_cast<int>(lane) - static_cast<int>(delta), width);
  return flashladder::simt::shuffle("__shfl_up_sync", mask, value, source, where);
}
