#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
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
  std::array<std::int32_t, 8> begun = {};    ///< By warpgroup: how many wgmmas have begun.

  /// And what another one knows.
  void join(const Knowledge& other);
};

/// Copies to a block's shared memory that are in flight, and the products beside them.
///
/// Of a wgmma each warp has a part, which begins when its lanes have come to it, and is done when they have
/// waited for it. A copy is in flight beside it unless the kernel's own order keeps the two apart: the warp
/// knows, when it comes, that the copy has arrived, or who begins the copy knows that the warp has waited.
/// So what is counted is what *may* happen at the same time: issued and not yet waited for. Whatever order
/// the units work in and the threads run in, it is the same. (Of a copy and a part that nothing keeps apart
/// the one that begins second counts it.)
///
/// Threads know of phases and of wgmmas by what they wait for, and by the barriers, mbarriers and
/// __syncwarps behind it. The arrival of a cp.async is known to the thread that has waited for it, to its
/// warp at the next wgmma, and to all behind the next __syncthreads; other barriers are not looked at for
/// it.
///
/// Of wgmmas of two warpgroups either may begin first where neither knows, when it begins, that the other
/// has begun. A warpgroup's first thread stands for it. (Again the one that begins second counts the pair.)
///
/// Bytes in flight are those of all copies to the block. (Where another block of its cluster begins some,
/// how many are in flight at a __syncthreads is a matter of the schedule.) FLOPs are during copies by
/// thread: where one is in flight that the thread could wait for, by cp.async its own, by TMA any. Those of
/// mma, where a lane's own copies by cp.async alone are looked at, mma.cpp counts.
class Flight {
 public:
  /// A block begins, `in_cluster` one of several that learn from each other.
  void begin(bool in_cluster);

  /// The running thread begins a copy by cp.async that reads so many bytes.
  void begin_copy(std::uint64_t bytes);
  /// It has waited for one.
  void end_copy(std::uint64_t bytes);
  /// It tells TMA to load so many bytes, which come with a phase of the mbarrier of this number.
  void begin_load(unsigned mbarrier, std::uint64_t phase, std::uint64_t bytes);

  /// It comes to its next wgmma, whose part of each thread is so many FLOPs.
  void come_to_wgmma(std::uint64_t flops_of_thread);
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
  /// Loads by TMA.
  struct Loads {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  /// A warp's part of a wgmma, some of whose lanes have had no copies in flight beside them so far; those
  /// of the others are counted already.
  struct Part {
    std::size_t number;             ///< Of the wgmma.
    std::uint64_t flops_of_thread;  ///< The part of each lane.
    std::uint32_t came = 0;         ///< Lanes.
    std::uint32_t alone = 0;        ///< Those of them that have had none.
    Knowledge known = {};           ///< Of those who have come, where it is new since the last one.
    std::uint64_t arrived = 0;      ///< Bytes of cp.async that they had begun and waited for.
  };
  struct OfWarp {
    std::size_t come_to = 0;    ///< Wgmmas that the first of its lanes has come to,
    std::size_t begun = 0;      ///< and those that all have.
    std::vector<Part> parts;    ///< By number.
    Knowledge known;            ///< What some lane knew when it came to the last one.
    std::uint64_t arrived = 0;  ///< Bytes of cp.async that its lanes have begun and waited for;
    std::uint64_t settled = 0;  ///< as many at the last __syncthreads.
  };

  /// The lanes that a part had no copies beside have one.
  static void count_all_of(const Part& part);
  /// The first thread of a warpgroup comes to its next wgmma.
  void begin_of_warpgroup();
  /// All lanes of a warp have come to a part.
  void begin_part(OfWarp& warp, std::vector<Part>::iterator part);
  /// What has come by TMA for those who know this.
  Loads arrived(const Knowledge& known) const;
  /// The running thread begins a copy: it is in flight beside the parts that it does not know to be done.
  void count_parts_beside(std::uint64_t bytes);

  bool looks_ = false;        ///< Whether there have been loads or wgmmas: there is nothing to know before.
  std::uint64_t copied_ = 0;  ///< Bytes of cp.async that were begun.
  Loads loads_;               ///< That were begun.
  /// By mbarrier and phase: those that come with it or with a phase before.
  std::array<std::vector<Loads>, SharedRaces::most_mbarriers> loads_until_;
  std::array<OfWarp, 32> warps_;
  std::array<std::int32_t, 8> begun_ = {};  ///< By warpgroup: wgmmas that its first thread has come to.
  std::uint64_t settled_ = 0;               ///< OfWarp::settled of all.
  unsigned multiplying_ = 0;                ///< One more than the last warp that has wgmmas.
};

}  // namespace flashladder::simt
