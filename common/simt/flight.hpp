#pragma once
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/simt/races.hpp"

namespace flashladder::simt {

struct Thread;

/// What a thread knows of what units have done: what it has waited for, and what others knew who came to a
/// barrier, or arrived at an mbarrier, that it has waited at.
struct Knowledge {
  /// By mbarrier: how many of its phases have ended.
  std::array<std::int32_t, SharedRaces::most_mbarriers> phases = {};
  std::array<std::int32_t, 32> wgmmas = {};  ///< By warp: how many of its wgmmas it has waited for.

  /// And what another one knows.
  void join(const Knowledge& other);
};

/// Copies to a block's shared memory that are in flight, and the products beside them.
///
/// A copy is in flight beside a product unless the kernel's own order keeps them apart: the product begins
/// when its warpgroup knows that the copy has arrived, or whoever begins the copy knows that the product is
/// done. So what is counted is what *may* happen at the same time, whatever order the units work in and
/// the threads run in.
///
/// Threads know of phases and of wgmmas by what they wait for, and by the barriers, mbarriers and
/// __syncwarps behind it. The arrival of a cp.async is known to the thread that has waited for it, and to
/// all behind the next __syncthreads; other barriers are not looked at for it.
class Flight {
 public:
  /// A block begins.
  void begin();

  /// The running thread begins a copy by cp.async that reads so many bytes.
  void begin_copy(std::uint64_t bytes);
  /// It has waited for one.
  void end_copy(std::uint64_t bytes);
  /// It tells TMA to load so many bytes, which come with a phase of the mbarrier of this number.
  void begin_load(unsigned mbarrier, std::uint64_t phase, std::uint64_t bytes);

  /// It comes to its next wgmma, whose part of each thread is so many FLOPs.
  void come_to_wgmma(std::uint64_t flops_of_thread);
  /// All threads of a warpgroup have come to its next wgmma.
  void begin_wgmma(unsigned warpgroup);
  /// The running thread has waited until of its wgmmas the first Thread::wgmmas_waited have been done.
  void wait_for_wgmmas();

  /// It comes to a barrier, or arrives at an mbarrier: who waits there will know what it knows.
  void tell(Knowledge& all) const;
  /// These lanes of a warp have waited: they know what those knew who came.
  void learn(unsigned warp, std::uint32_t lanes, const Knowledge& all) const;
  /// These lanes of the running thread's warp have synchronised among themselves.
  void synchronise(std::uint32_t lanes) const;

  /// All threads have come to __syncthreads, and this is what they know.
  /// @returns bytes of copies in flight
  std::uint64_t at_block_barrier(const Knowledge& all);

 private:
  static constexpr unsigned most_warpgroups = 8, group_threads = 128;
  /// Loads by TMA.
  struct Loads {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  /// A wgmma of which some threads' parts have had no copies in flight beside them so far; those of others
  /// are counted already.
  struct Product {
    std::size_t number;                  ///< In its warpgroup.
    std::uint64_t flops_of_thread;       ///< The part of each thread.
    std::bitset<group_threads> alone;    ///< Whose parts these are.
    Knowledge known = {};                ///< Of those who have come, where it is new since the last one.
    std::uint64_t arrived_of_group = 0;  ///< Bytes of cp.async that they had begun and waited for.
  };
  struct Group {
    std::size_t come_to = 0;       ///< Wgmmas that the first of its threads has come to,
    std::size_t begun = 0;         ///< and those that all have.
    std::deque<Product> products;  ///< By number.
    Knowledge known;               ///< What some thread of it knew when it came to the last one.
    std::uint64_t arrived = 0;     ///< Bytes of cp.async that its threads have begun and waited for;
    std::uint64_t settled = 0;     ///< as many at the last __syncthreads.
  };

  /// What has come by TMA for those who know this.
  Loads arrived(const Knowledge& known) const;
  /// How many wgmmas of a warpgroup a thread knows to be done: all four warps have waited for them.
  static std::size_t done(const Thread& thread, unsigned warpgroup);
  /// The running thread begins a copy: it is in flight beside the wgmmas that it does not know to be done.
  void count_wgmmas_beside(std::uint64_t bytes);

  bool looks_ = false;  ///< Whether there have been mbarriers or wgmmas: nobody knows anything before.
  std::uint64_t copied_ = 0;  ///< Bytes of cp.async that were begun.
  Loads loads_;               ///< That were begun.
  /// By mbarrier and phase: those that come with it or with a phase before.
  std::array<std::vector<Loads>, SharedRaces::most_mbarriers> loads_until_;
  std::array<Group, most_warpgroups> groups_;
  unsigned groups_used_ = 0;  ///< One more than the last one that has wgmmas.
};

}  // namespace flashladder::simt
