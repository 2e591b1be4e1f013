#pragma once
#include <cstdint>

namespace flashladder::simt {

struct Trace;

/// In which order blocks begin, and in which order the threads of a block that can run do run. A right
/// kernel gives the same results in every order.
enum class Schedule {
  forward,  ///< The next lane, then the next warp; the next block.
  reverse,  ///< The last lane of the last warp first; the last block first.
  random,   ///< Any, by Options::seed.
};

/// When units that work beside the threads, such as the one that copies tensors, do what they are told. A
/// right kernel gives the same results, and the same counts, in every case.
enum class Units {
  lazy,    ///< Not before a thread cannot go on without it.
  eager,   ///< At once.
  random,  ///< Any time, in any order, by Options::seed.
};

/// How kernels are emulated. Counting is always on; the rest costs time.
struct Options {
  bool banks = false;  ///< Count wavefronts and sectors too (10 to 30 times slower).
  bool check = false;  ///< Find races, uninitialised reads, missing waits, endless loops (10 to 20).
  Schedule schedule = Schedule::forward;  ///< Order of threads and blocks.
  Units units = Units::lazy;              ///< Order of what units beside the threads do.
  std::uint64_t seed = 0;                 ///< For both, where random. The same seed, the same order.
  unsigned os_threads = 0;  ///< OS threads that run blocks at the same time; 0: one per core. With 1
                            ///< a block ends before the next begins.
  /// Accesses that a thread may make without synchronising, before `check` takes it for an endless loop.
  std::uint64_t access_budget = 4'000'000;
  /// Added to the number of visible keys that a kernel asks for: what ask_for_row() returns. It shows
  /// whether the kernel uses the answer.
  int added_to_rows = 0;
  /// Receives what the warps of all blocks of counted launches do; nullptr: nobody looks. Of one emulator
  /// at a time, because it takes Emulator::probe for itself.
  Trace* trace = nullptr;
};

}  // namespace flashladder::simt
