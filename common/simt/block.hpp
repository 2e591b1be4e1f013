#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "common/simt/access_log.hpp"
#include "common/simt/async_queue.hpp"
#include "common/simt/fiber.hpp"
#include "common/simt/flight.hpp"
#include "common/simt/kernel_error.hpp"
#include "common/simt/ledger.hpp"
#include "common/simt/options.hpp"
#include "common/simt/races.hpp"
#include "common/simt/ready_lanes.hpp"
#include "common/simt/register_pool.hpp"
#include "common/simt/trace.hpp"

// The state of the blocks of a cluster that run: their threads, warps and shared memory.

namespace flashladder::simt {

struct f32;
struct WarpgroupState;  // of wgmma.cpp

inline constexpr unsigned warp_size = 32;
inline constexpr unsigned max_threads = 1024;           ///< Of a block; here of a cluster, too.
inline constexpr unsigned most_blocks = 8;              ///< Of a cluster.
inline constexpr std::uint32_t max_shared = 227 << 10;  ///< Bytes that a block may have on chip.
/// Of the GPU that is emulated: few, so that small grids have more blocks.
inline constexpr int multiprocessors = 16;
/// What it says of its L2 cache: little, so that small problems do not fit. The cache is not emulated.
inline constexpr std::int64_t L2_bytes = 3 << 20;
inline constexpr std::uint32_t max_static_shared = 48 << 10;  ///< Of these, in declared arrays.

/// A shared array that the kernel declared, or a view of its dynamic shared memory.
struct SharedArray {
  const char* name;       ///< As in the ledger.
  Where where;            ///< Its declaration.
  unsigned column;        ///< Of the declaration: two may stand in one line. 0: dynamic shared memory.
  std::uint32_t offset;   ///< In the cluster's shared memory, bytes.
  std::uint32_t bytes;    ///< Size.
  std::uint32_t granule;  ///< Bytes that races are told apart by: 2 or 4.
  std::byte* data;        ///< Of the first element.
  SharedTraffic traffic;  ///< Counted so far in this launch by this OS thread.
};

/// The shared memory of the blocks of the cluster that an OS thread runs: one area for all clusters in
/// turn, in which the blocks have theirs one after the other, all laid out alike.
class SharedMemory {
 public:
  /// A launch of clusters of `blocks` blocks with `dynamic_bytes` bytes of dynamic shared memory each: no
  /// arrays yet.
  void begin_launch(std::uint32_t dynamic_bytes, unsigned blocks);
  /// A new cluster: everything is NaN.
  void begin_cluster();

  /// The array declared at a place; laid out when the first thread comes by, found again by all others.
  /// nullptr when it no longer fits; the blocks of a cluster may have none.
  SharedArray* declare(const char* name, Where where, unsigned column, std::uint32_t bytes,
                       std::uint32_t element_bytes);
  /// `bytes` bytes of a block's dynamic shared memory from byte `offset` on (0: all to its end), under a
  /// name. nullptr when there are not as many.
  SharedArray* dynamic(unsigned rank, const char* name, Where where, std::uint32_t offset,
                       std::uint32_t bytes, std::uint32_t element_bytes);
  /// What another block of the cluster has where a block has this array.
  SharedArray* of_block(unsigned rank, const SharedArray& array);
  /// The block that has this byte.
  unsigned rank_of(std::uint32_t offset) const { return stride_ == 0 ? 0 : offset / stride_; }
  /// Bytes from the first byte of one block to that of the next.
  std::uint32_t stride() const { return stride_; }

  /// Of byte 0; 1024-byte aligned.
  std::byte* base() const { return base_; }
  /// Of a place, from there.
  std::uint32_t offset_of(const std::byte* at) const { return static_cast<std::uint32_t>(at - base_); }
  /// Whether there are declared arrays: on a GPU they lie before dynamic shared memory.
  bool has_declared() const { return static_bytes_ != 0; }
  /// Bytes laid out, with the gaps between arrays.
  std::uint32_t end() const { return end_; }
  /// Bytes that a GPU would need: arrays in multiples of 16, and the dynamic part.
  std::uint32_t bytes() const { return bytes_; }
  /// All arrays so far. References to them stay valid.
  const std::deque<SharedArray>& arrays() const { return arrays_; }

 private:
  SharedArray& add(const char* name, Where where, unsigned column, std::uint32_t offset,
                   std::uint32_t bytes, std::uint32_t element_bytes);

  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  unsigned blocks_ = 1;
  std::uint32_t stride_ = 0;
  std::uint32_t dynamic_bytes_ = 0;
  std::uint32_t static_bytes_ = 0;
  std::uint32_t end_ = 0;
  std::uint32_t bytes_ = 0;
  std::deque<SharedArray> arrays_;
};

/// An asynchronous copy that a thread began and has not waited for.
struct PendingCopy {
  SharedArray* array;        ///< Where to.
  std::uint32_t offset;      ///< First byte of the cluster's shared memory that it writes.
  std::uint32_t bytes;       ///< How many it writes.
  std::uint32_t read_bytes;  ///< How many it reads; the rest becomes zero.
  const std::byte* source;   ///< Where from.
  Where where;               ///< Of the instruction.
};

struct Block;
struct Mbarrier;

/// A thread's accumulators that a wgmma changes, and that it has not waited for.
struct OpenAccumulators {
  f32* C;             ///< [columns / 8][4].
  int columns;        ///< N.
  std::size_t chain;  ///< The first wgmma that changes them: its number in the warpgroup,
  std::size_t last;   ///< and the last one's.
};

/// One CUDA thread.
struct Thread {
  Fiber fiber;                            ///< What it runs on.
  Block* block = nullptr;                 ///< Which block it is of.
  uint3 index = {};                       ///< threadIdx.
  unsigned linear = 0;                    ///< Number in the cluster.
  unsigned lane = 0;                      ///< Number in the warp.
  unsigned warp = 0;                      ///< Which warp of the cluster.
  bool exited = false;                    ///< Returned from the kernel.
  const char* waits_at = nullptr;         ///< What it waits at; nullptr: it can run.
  Where where;                            ///< Where that is.
  const Mbarrier* mbarrier = nullptr;     ///< The one that it waits for, where it does,
  unsigned parity = 0;                    ///< and the parity of the phase.
  std::uint64_t accesses = 0;             ///< Since it last synchronised; counted when observed.
  Busiest work;                           ///< In this block; counted when observed.
  std::size_t tiles = 0;                  ///< That it has come to in this block.
  std::uint64_t exponentials = 0;         ///< Since its last product on tensor cores.
  bool has_copied = false;                ///< Whether it has begun asynchronous copies, or loads by TMA.
  std::vector<PendingCopy> copies;        ///< Oldest first.
  std::vector<std::size_t> copy_groups;   ///< Sizes of the committed groups, oldest first.
  std::uint64_t arrived = 0;              ///< Bytes that those read which it has waited for.
  std::size_t stores = 0;                 ///< By TMA, with bulk reductions, since the last group of them.
  Where stored_by;                        ///< The last of them.
  std::vector<std::size_t> store_groups;  ///< Sizes of its groups that it has not waited for, oldest first.
  bool wgmma_fenced = false;      ///< It has executed wgmma_fence and may not have used registers since.
  std::size_t wgmmas = 0;         ///< That it has begun;
  std::size_t wgmmas_waited = 0;  ///< of them, those that it has waited for.
  std::vector<std::size_t> wgmma_groups;       ///< How many it had begun at each commit, oldest first.
  std::vector<OpenAccumulators> accumulators;  ///< Oldest first.
  Where began_wgmma;                           ///< The last of them.
  Knowledge knows;                             ///< Of what units have done.
  bool has_news = false;                       ///< Whether that is more than at its last wgmma.
};

/// Lanes of a warp that gather at one warp instruction.
struct Meeting {
  std::uint32_t mask = 0;                      ///< Who must come.
  std::uint32_t arrived = 0;                   ///< Who is there; 0: the slot is free.
  const char* name = nullptr;                  ///< Of the instruction.
  Where where;                                 ///< Of the first to come.
  std::array<void*, warp_size> operands = {};  ///< Of each lane, on its stack.
};

/// One warp.
struct Warp {
  std::uint32_t live = 0;           ///< Lanes that have not returned.
  unsigned pending = 0;             ///< Meetings that wait for somebody.
  std::array<Meeting, 4> meetings;  ///< Disjoint groups of lanes may meet at the same time.
  WarpLog log;                      ///< Accesses since the lanes last met.
  /// Of each tile, two rows whose visible keys its lanes asked for; no_row where there were fewer.
  std::vector<std::array<int, 2>> asked_rows;
  static constexpr int no_row = std::numeric_limits<int>::min();  ///< Not a row.
};

/// One of a block's 16 barriers, of which number 0 is that of __syncthreads; or the cluster's.
struct Barrier {
  unsigned arrived = 0;                                             ///< Threads counted so far.
  unsigned expected = 0;                                            ///< Threads that complete it.
  Where where;                                                      ///< Of the first to come.
  std::array<std::uint32_t, max_threads / warp_size> members = {};  ///< Who came, by warp.
  std::array<std::uint32_t, max_threads / warp_size> waiters = {};  ///< Who waits.
  SharedRaces::Clock clock = {};                                    ///< What the members knew,
  Knowledge knowledge;                                              ///< and of what units have done.
};

/// An mbarrier that was initialised.
struct Mbarrier {
  SharedArray* array;             ///< That it is an element of.
  std::uint32_t offset;           ///< Its first byte of the cluster's shared memory.
  std::uint32_t number;           ///< Among those of the cluster.
  std::uint32_t arrivals;         ///< That a phase takes.
  std::uint32_t pending;          ///< Arrivals that are still to come in this phase.
  std::int64_t bytes = 0;         ///< Of copies, likewise.
  std::int64_t expected = 0;      ///< Bytes announced for this phase.
  std::int64_t begun = 0;         ///< Bytes of copies begun for it.
  unsigned initialised_by;        ///< Which thread,
  bool fenced = false;            ///< and whether it has made that visible to units and other blocks:
  std::uint32_t fenced_at = 0;    ///< (check) in which step of its warp.
  std::uint64_t copied = 0;       ///< One more than the last phase that copies were begun for,
  Where copied_by = {};           ///< and by what;
  std::uint64_t waited = 0;       ///< one more than the last phase that somebody has waited for.
  std::uint64_t phase = 0;        ///< That is under way.
  SharedRaces::Clock now = {};    ///< What those who arrived in this phase knew,
  SharedRaces::Clock ended = {};  ///< and those of the phases before.
  Knowledge told = {};            ///< What those know of units who have arrived so far,
  Knowledge known = {};           ///< and who had when the last phase ended.
  std::array<std::uint32_t, max_threads / warp_size> waiters = {};  ///< Who waits, by warp.
};

/// What is launched.
struct Launch {
  const char* kernel;          ///< Name for the ledger and errors.
  dim3 grid;                   ///< Blocks.
  dim3 block;                  ///< Threads of each.
  unsigned cluster;            ///< Blocks of a cluster, along x.
  std::uint32_t shared_bytes;  ///< Dynamic shared memory.
  void (*body)(const void*);   ///< Runs the kernel for the running thread.
  const void* arguments;       ///< For `body`.
  bool dependent;              ///< It may begin before the one before it has ended.
  std::uint32_t number;        ///< Counts launches, from 1.
  std::uint32_t unfinished;    ///< The first one that may still run beside it; itself where none does.
  const Options* options;      ///< Of the emulator.
  LaunchTrace* trace;          ///< Gets what it does, where that is asked for.
};

/// One block.
struct Block {
  unsigned rank = 0;                   ///< Number in its cluster.
  unsigned linear = 0;                 ///< Number in the grid.
  uint3 index = {};                    ///< blockIdx.
  unsigned exited = 0;                 ///< Threads that returned.
  std::array<Barrier, 16> barrier;     ///< By number.
  Flight flight;                       ///< Which copies to it are in flight beside what.
  std::size_t tiles = 0;               ///< That the furthest of its threads has come to.
  std::vector<bool> masked;            ///< By tile: whether it was masked.
  std::unique_ptr<Recorder> recorder;  ///< Writes down what it does, where that is asked for.
  /// (check) By warp of another block: its step at its last arrival at this block's mbarriers, and where.
  std::array<std::pair<std::uint32_t, Where>, max_threads / warp_size> arrived;
};

/// The blocks of a cluster, nearly always one, which an OS thread runs; used for one cluster after the
/// other. Threads and warps are numbered through all of its blocks.
struct Cluster {
  const Launch* launch = nullptr;                  ///< Which launch it belongs to.
  unsigned number = 0;                             ///< In the grid.
  unsigned block_threads = 0;                      ///< Threads of a block.
  unsigned threads = 0;                            ///< Of all blocks.
  unsigned warps = 0;                              ///< Of all blocks.
  unsigned exited = 0;                             ///< Threads that returned.
  ReadyLanes ready;                                ///< Who can run.
  std::mt19937_64 random;                          ///< For Schedule::random.
  std::vector<Block> block;                        ///< By rank.
  std::vector<std::unique_ptr<Thread>> thread;     ///< By number; may hold more than `threads`.
  std::array<Warp, max_threads / warp_size> warp;  ///< By number.
  Barrier barrier;                                 ///< Of all blocks.
  std::deque<Mbarrier> mbarriers;                  ///< In the order in which they were initialised.
  AsyncQueue units;                                ///< What works beside the threads.
  /// By number: the wgmmas of those that have some.
  std::array<std::shared_ptr<WarpgroupState>, max_threads / 128> warpgroup;
  RegisterPool registers;  ///< That setmaxnreg moves.
  SharedMemory shared;     ///< What its threads share.
  SharedRaces races;       ///< Who used it.
  /// The first read of a word that nobody had written, or that a copy of another thread was under way to.
  /// If it is written, or the copy arrives, before the reader's warp next synchronises, a barrier is
  /// missing; if not, it is what it seems.
  std::optional<KernelFault> early_read;
  unsigned early_reader = 0;  ///< Whose warp read it.
  /// Who has waited for the launch before: warp, and its step.
  std::vector<std::pair<unsigned, std::uint32_t>> grid_waits;
  unsigned turns = 0;                         ///< That it has had: next_turn().
  Busiest busiest;                            ///< Thread of this launch.
  std::uint64_t most_bytes_in_flight = 0;     ///< The most seen at a barrier in this launch.
  std::uint64_t most_exp_before_product = 0;  ///< The most exponentials of a thread between two products.
  std::unique_ptr<StackPool> stacks;          ///< One per thread.
  int stack_count = 0;                        ///< How many.
  std::vector<GlobalTraffic> global;          ///< By GlobalBuffer::slot, in this launch.
  Fiber* scheduler = nullptr;                 ///< Goes on when the cluster is done.
  std::exception_ptr error;                   ///< What ended it early.
};

/// What runs on this OS thread at this moment.
struct Running {
  Thread* thread = nullptr;         ///< The CUDA thread.
  Cluster* cluster = nullptr;       ///< Its cluster.
  GlobalTraffic* global = nullptr;  ///< Counts by GlobalBuffer::slot.
  bool observed = false;            ///< Accesses are logged or checked, beyond being counted.
  Counters counts;                  ///< Counted so far in this launch by this OS thread.
  std::uint64_t operations = 0;     ///< Those on f32 when the CUDA thread began to run, when observed.
  Recorder* trace = nullptr;        ///< Of its block, where it is traced.
};

/// Every counted operation touches it. Hidden, so that the linker makes the cheapest access of it that
/// there is: in a program an offset; in a library that is loaded later, which may not ask for more, an
/// address found once a function.
inline constinit thread_local __attribute__((visibility("hidden"))) Running running{};

}  // namespace flashladder::simt
