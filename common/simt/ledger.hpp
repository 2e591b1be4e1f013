#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/cuda_words.hpp"

namespace flashladder::simt {

/// What is counted without regard to a buffer. Operations are counted as written in the source, per CUDA
/// thread; warp instructions once per warp, barriers once per block.
struct Counters {
  std::uint64_t blocks = 0;               ///< Blocks that ran.
  std::uint64_t dependent_launches = 0;   ///< Launches that need not wait for the kernel before to end.
  std::uint64_t flops_cuda_cores = 0;     ///< Matrix products by mac(): 2 each.
  std::uint64_t flops_tensor_cores = 0;   ///< Matrix products by mma instructions.
  std::uint64_t flops_during_copies = 0;  ///< Those of them beside which copies are in flight (Flight).
  std::uint64_t add = 0;                  ///< f32 additions and subtractions.
  std::uint64_t mul = 0;                  ///< f32 multiplications.
  std::uint64_t div = 0;                  ///< f32 divisions.
  std::uint64_t max = 0;                  ///< fmaxf and fminf.
  std::uint64_t fma = 0;                  ///< Of add and of mul, each: those of a fused multiply-add.
  std::uint64_t exp = 0;                  ///< Exponentials, to any base.
  std::uint64_t exp2 = 0;                 ///< Of them: those to base 2.
  std::uint64_t exp_during_wgmmas = 0;    ///< Of exp: those of threads with wgmmas begun, not waited for.
  std::uint64_t log = 0;                  ///< Logarithms, to any base.
  std::uint64_t barriers = 0;             ///< __syncthreads, each once per block.
  std::uint64_t named_barriers = 0;       ///< Completed named barriers.
  std::uint64_t mbarrier_arrivals = 0;    ///< At mbarriers, each once per thread.
  std::uint64_t mbarrier_waits = 0;       ///< Likewise.
  std::uint64_t syncwarps = 0;            ///< __syncwarp, each once per warp.
  std::uint64_t shuffles = 0;             ///< Shuffles, each once per warp.
  std::uint64_t atomics = 0;              ///< Atomic operations, each once per thread.
  std::uint64_t async_copies = 0;         ///< cp.async instructions, each once per thread.
  std::uint64_t copying_threads = 0;    ///< Threads that begin such copies or loads by TMA, once per block.
  std::uint64_t tma_loads = 0;          ///< Loads of a box by TMA, each once per thread that begins it.
  std::uint64_t tma_stores = 0;         ///< Stores likewise.
  std::uint64_t tma_read_bytes = 0;     ///< Bytes of global memory that such loads read.
  std::uint64_t tma_written_bytes = 0;  ///< Bytes of global memory that such stores write.
  std::uint64_t wgmmas = 0;             ///< Each once per warpgroup.
  std::uint64_t wgmma_waits = 0;        ///< Waits for them, each once per thread.
  std::uint64_t wgmma_read_bytes = 0;   ///< Bytes of shared memory that the tensor cores read for them.
  std::uint64_t wgmma_bytes_in_flight = 0;  ///< Bytes in flight beside one, summed over warps (Flight).
  std::uint64_t unordered_wgmmas =
      0;                           ///< Pairs, of two warpgroups, either of which may begin first (Flight).
  std::uint64_t bulk_reduces = 0;  ///< Bulk reductions, each once per thread that begins it.
  std::uint64_t tiles = 0;         ///< Tiles visited: count_tile(), once per block.
  std::uint64_t masked_tiles = 0;  ///< Those of them that were masked.
  std::uint64_t bytes_in_flight = 0;  ///< Bytes of copies in flight at __syncthreads, summed over them.

  /// A counter and its name.
  struct Field {
    const char* name;                 ///< As the member's.
    std::uint64_t Counters::*member;  ///< Which one.
  };
  static const std::vector<Field>& fields();  ///< All of them, in order of declaration.

  Counters& operator+=(const Counters& other);       ///< Adds each counter.
  bool operator==(const Counters&) const = default;  ///< Equal in each counter.
};

/// What the threads request of one global buffer, before caches.
struct GlobalTraffic {
  std::uint64_t element_bytes = 0;        ///< Of one element of the buffer.
  std::uint64_t read_bytes = 0;           ///< By loads and asynchronous copies.
  std::uint64_t written_bytes = 0;        ///< By stores.
  std::uint64_t atomic_bytes = 0;         ///< By atomic operations, of threads and of bulk reductions.
  std::uint64_t distinct_read_bytes = 0;  ///< (banks) As read_bytes, but lanes of one warp instruction that
                                          ///< request the same bytes count once, as in a GPU's counters.
  std::uint64_t distinct_written_bytes = 0;  ///< (banks) As written_bytes, likewise.
  std::uint64_t sectors = 0;         ///< (banks) 32-byte sectors touched, summed over warp instructions.
  std::uint64_t atomic_sectors = 0;  ///< (banks) Those of them that atomic operations touch.
  std::uint64_t ideal_sectors = 0;   ///< (banks) The fewest sectors that could hold the same bytes.

  std::uint64_t read_elements() const;                    ///< read_bytes in elements.
  std::uint64_t written_elements() const;                 ///< written_bytes in elements.
  std::uint64_t atomic_elements() const;                  ///< atomic_bytes in elements.
  GlobalTraffic& operator+=(const GlobalTraffic& other);  ///< Adds each count.
  bool operator==(const GlobalTraffic&) const = default;  ///< Equal in each count.
};

/// Traffic between the threads and one shared array.
struct SharedTraffic {
  std::uint64_t array_bytes = 0;       ///< Size of the array, per block.
  std::uint64_t read_bytes = 0;        ///< By loads.
  std::uint64_t written_bytes = 0;     ///< By stores and asynchronous copies.
  std::uint64_t wavefronts = 0;        ///< (banks) Passes over the 32 banks, summed over warp instructions.
  std::uint64_t ideal_wavefronts = 0;  ///< (banks) The same without bank conflicts.

  SharedTraffic& operator+=(const SharedTraffic& other);  ///< Adds each count; the larger array_bytes.
  bool operator==(const SharedTraffic&) const = default;  ///< Equal in each count.
};

/// What the busiest thread of all did: a launch cannot end before it.
struct Busiest {
  std::uint64_t operations = 0;  ///< On f32; a step of mac() is one.
  std::uint64_t global = 0;      ///< Accesses to global memory.
  std::uint64_t shared = 0;      ///< Accesses to shared memory.

  Busiest& operator+=(const Busiest& other);  ///< Adds each count.
  void raise_to(const Busiest& other);        ///< The larger of each count.
};

/// Everything counted in one launch, or in several added up. Exact, and the same whatever the schedule and
/// the number of OS threads; only `seconds` is not.
struct Ledger : Counters {
  std::string kernel;                           ///< Name given to launch().
  std::map<std::string, GlobalTraffic> global;  ///< By buffer; only buffers that were touched.
  std::map<std::string, SharedTraffic> shared;  ///< By array; all that the kernel declared.
  std::uint64_t shared_bytes_per_block = 0;     ///< On-chip memory of a block; the largest launch's.
  std::uint64_t most_bytes_in_flight = 0;       ///< Most bytes of copies in flight at a __syncthreads.
  /// The most exponentials that a thread computes before or between its products on tensor cores.
  std::uint64_t most_exp_before_product = 0;
  /// Tiles of the multiprocessor that has the most, as if each of the emulated GPU's took the next block,
  /// in their order, when it is done with the one before.
  std::uint64_t most_tiles_of_multiprocessor = 0;
  std::uint64_t most_registers = 0;    ///< The most that a thread has after setmaxnreg; 0: it is not used.
  std::uint64_t fewest_registers = 0;  ///< The fewest, likewise.
  std::uint64_t device_bytes = 0;      ///< Device memory allocated at the launch; the most of any.
  Busiest busiest;                     ///< (banks) Launches after each other are added up.
  bool banks_analysed = false;         ///< Whether wavefronts and sectors were counted.
  double seconds = 0;                  ///< Spent emulating. Not a speed of anything.

  GlobalTraffic global_total() const;  ///< Over all buffers; element_bytes is 0 where they differ.
  SharedTraffic shared_total() const;  ///< Over all arrays.

  /// Blocks have these numbers as most_registers and fewest_registers.
  void note_registers(std::uint64_t most, std::uint64_t fewest);
  /// Adds another launch. `kernel` becomes empty when they differ.
  Ledger& operator+=(const Ledger& other);
  /// The same counts; the time may differ.
  bool operator==(const Ledger& other) const;

  /// Every count with a name, such as "global.Q.read_bytes": for tables and JSON.
  std::vector<std::pair<std::string, std::uint64_t>> entries() const;
  /// Those of entries() that were counted: without Options::banks, none of wavefronts, sectors, distinct
  /// bytes.
  std::vector<std::pair<std::string, std::uint64_t>> counted() const;
};

}  // namespace flashladder::simt
