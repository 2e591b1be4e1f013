#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/simt/kernel_error.hpp"

namespace flashladder::simt {

/// Why an access is wrong, and with which earlier access it conflicts.
struct Conflict {
  ErrorKind kind;              ///< race_*, uninitialised_*, missing_*.
  bool earlier_wrote = false;  ///< Whether the earlier access was a write.
  unsigned warp = 0;           ///< Of the earlier access (shared memory).
  unsigned lane = 0;           ///< Of the earlier access (shared memory).
  unsigned block = 0;          ///< Of the earlier access (global memory).
  Where where;                 ///< Of the earlier access.
  bool by_unit = false;        ///< Whether it is a unit's, which that thread told it to do.
};

/// Who used each word of a cluster's shared memory, and whether a barrier has made it safe since.
///
/// Each warp has a vector clock: entry w says up to which of warp w's steps everything is known to have
/// happened. A barrier joins the clocks of those who meet and starts a new step in each; __syncwarp starts
/// a new step in its warp, and a new epoch: what one lane does with an mbarrier begins a step, but orders
/// nothing among the lanes. A word remembers who wrote it last, and who read it since, at which step. An
/// access is a race when an earlier one, with a write among the two, is not known to have happened; two
/// lanes of a warp race within one epoch.
///
/// Units that copy beside the threads write, too. What they write for a phase of an mbarrier has happened
/// for those who have waited for that phase: each mbarrier has an entry in the clocks, whose steps are its
/// phases. What threads have written a unit may use when the writer, behind the write, has executed a proxy
/// fence that is known to have happened. What a unit reads must not change before it is known that it has
/// been read.
class SharedRaces {
 public:
  static constexpr unsigned most_mbarriers = 64;  ///< Of a cluster.
  /// A vector clock: of the warps, then of the mbarriers.
  using Clock = std::array<std::uint32_t, 32 + most_mbarriers>;

  /// A new cluster of `warps` warps begins.
  void begin(unsigned warps);
  /// Shared memory up to `bytes` is in use.
  void reserve(std::uint32_t bytes);

  /// A read of a word that nobody wrote is a conflict (uninitialised_shared), as is one of a word that a
  /// copy is under way to (missing_wait). Both are remembered all the same: a write, or the copy's arrival,
  /// that comes later without a barrier in between is a race with the read.
  ///
  /// A lane reads or writes `bytes` bytes from `byte` on, in steps of `granule` (the array's element: 2, or
  /// 4 for everything larger).
  std::optional<Conflict> access(unsigned warp, unsigned lane, std::uint32_t byte, std::uint32_t bytes,
                                 std::uint32_t granule, bool write, Where where);
  /// What was just written (by access) only marks where an asynchronous copy, now under way, will write.
  void begin_copy(std::uint32_t byte, std::uint32_t bytes, std::uint32_t granule);
  /// The copy arrives: a write of the lane that waited for it.
  std::optional<Conflict> end_copy(unsigned warp, unsigned lane, std::uint32_t byte, std::uint32_t bytes,
                                   std::uint32_t granule, Where where);

  /// A lane of a warp tells a unit to write these bytes; they come with a phase of the cluster's mbarrier
  /// of this number.
  std::optional<Conflict> write_by_unit(unsigned mbarrier, std::uint64_t phase, unsigned warp,
                                        unsigned lane, std::uint32_t byte, std::uint32_t bytes,
                                        std::uint32_t granule, std::uint32_t swizzle, Where where);
  /// All that comes with this phase of an mbarrier is there: those who know `ended` know it.
  void end_phase(Clock& ended, unsigned mbarrier, std::uint64_t phase);
  /// A lane of a warp tells a unit to read these bytes.
  std::optional<Conflict> read_by_unit(unsigned warp, unsigned lane, std::uint32_t byte,
                                       std::uint32_t bytes, std::uint32_t granule, Where where);
  /// It waits until all of its reads by units but the `pending` youngest have been done.
  void end_reads(unsigned warp, unsigned lane, std::size_t pending);
  /// A lane makes what it has written visible to the units.
  void fence_proxy(unsigned warp, unsigned lane) {
    fences_[warp * 32 + lane].push_back(clocks_[warp][warp]++);
  }
  /// A warp begins a step: those who know it know what the warp has done before.
  std::uint32_t begin_step(unsigned warp) { return ++clocks_[warp][warp]; }
  /// Whether a warp knows that a phase of an mbarrier has ended.
  bool knows_phase(unsigned warp, unsigned mbarrier, std::uint64_t phase) const {
    return clocks_[warp][32 + mbarrier] >= step_of(phase);
  }
  /// The step that a warp is in.
  std::uint32_t step_of_warp(unsigned warp) const { return clocks_[warp][warp]; }
  /// Whether a warp knows that another one's step has happened.
  bool knows(unsigned warp, unsigned other, std::uint32_t step) const {
    return clocks_[warp][other] >= step;
  }

  /// What a warp knows is all that `known` has, too; the first one's becomes it.
  void join_knowledge(Clock& known, unsigned warp, bool first) const;
  /// A warpgroup, all of whose warps know what is in `known`, tells the tensor cores to read, with its
  /// wgmma of this number (from 0), the chunk of 16 bytes at `byte`, as one of a tile with this swizzle.
  std::optional<Conflict> read_by_wgmma(unsigned warpgroup, std::size_t number, const Clock& known,
                                        std::uint32_t byte, std::uint32_t granule, std::uint32_t swizzle,
                                        Where where);
  /// A warp has waited until of its wgmmas the first `count` have been done.
  void wait_for_wgmmas(unsigned warp, std::size_t count);

  /// A warp comes to a barrier whose members' clocks are gathered in `barrier`.
  void arrive(Clock& barrier, unsigned warp) const;
  /// The barrier is complete: the warp goes on, knowing what the others did if it waited for them.
  void leave(const Clock& barrier, unsigned warp, bool waited);
  /// A thread of a warp lets others know, by `to`, what has happened for its warp so far, and goes on.
  void release(Clock& to, unsigned warp) {
    arrive(to, warp);
    ++clocks_[warp][warp];
  }
  /// A thread of a warp comes to know what has happened for those who released it to `from`.
  void acquire(const Clock& from, unsigned warp);
  /// The lanes of a warp have synchronised among themselves.
  void synchronise(unsigned warp) { epochs_[warp] = ++clocks_[warp][warp]; }

 private:
  using Place = std::uint32_t;  ///< A Where in four bytes: there are very many marks.
  struct Write {
    Place place = 0;
    std::uint32_t step = 0;
    std::uint8_t warp = 0;    ///< That wrote; from 32 on a unit, for an mbarrier.
    std::uint8_t lane = 0;    ///< That wrote, or told the unit to,
    std::uint8_t teller = 0;  ///< and its warp.
    bool copying = false;
  };
  struct Read {
    Place place = 0;
    std::uint32_t step = 0;
    std::uint32_t lanes = 0;
  };
  Place pack(Where where);
  Where unpack(Place place) const;

  /// A lane reads a word, of which `mine` has the reads of its warp.
  void note_read(Read& mine, Place place, unsigned warp, unsigned lane);
  /// What a lane does by a unit with a word that was last written so, or nothing.
  std::optional<Conflict> unordered_write(const Write& last, unsigned warp, unsigned lane) const;
  /// What a unit does with a word that was last written so, told by those who know what is in `clock`.
  std::optional<Conflict> unordered_write(const Write& last, const Clock& clock) const;
  /// A read of these bytes by a wgmma that a warp does not know to have happened.
  std::optional<Conflict> unordered_wgmma(std::uint32_t byte, std::uint32_t bytes, unsigned warp) const;
  /// A read by a unit that is under way.
  struct PendingRead {
    std::uint32_t begin, end;  ///< Bytes.
    std::uint32_t granule;     ///< Of the array.
    std::uint8_t warp, lane;   ///< Who told it.
    Where where;               ///< By which instruction.
  };
  /// Such a read of these bytes.
  std::optional<Conflict> pending_read(std::uint32_t byte, std::uint32_t bytes) const;
  /// The step of a phase.
  std::uint32_t step_of(std::uint64_t phase) const {
    return first_step_ + 1 + static_cast<std::uint32_t>(phase);
  }

  /// A read of the word by another lane that the warp does not know to have happened.
  std::optional<Conflict> unordered_read(std::uint32_t granule, unsigned warp, unsigned lane) const;

  unsigned warps_ = 0;
  std::uint32_t first_step_ = 1;  ///< Of this cluster: marks of those before it are older.
  std::array<Clock, 32> clocks_ = {};
  std::array<std::uint32_t, 32> epochs_ = {};  ///< The step of each warp at which its lanes met last.
  std::uint32_t last_phase_ = 0;               ///< The latest step of an mbarrier.
  std::array<std::vector<std::uint32_t>, 1024> fences_;  ///< By thread: the steps at its proxy fences.
  std::vector<PendingRead> pending_reads_;               ///< Oldest first.
  /// What the wgmmas of a warpgroup read.
  struct WgmmaReads {
    std::vector<std::uint32_t> last;  ///< By chunk of 16 bytes: one more than the last wgmma's number.
    std::vector<Place> places;        ///< Of the wgmmas.
  };
  std::array<WgmmaReads, 8> wgmma_reads_;  ///< By warpgroup.
  /// By warp: how many wgmmas it had waited for at which of its steps.
  std::array<std::vector<std::pair<std::size_t, std::uint32_t>>, 32> wgmma_waits_;
  unsigned warpgroups_ = 0;             ///< Of those that have wgmmas: one more than the last one's number.
  std::vector<std::uint8_t> swizzles_;  ///< By chunk: that of the last copy by TMA to it.
  std::vector<const char*> files_;      ///< That places refer to.
  std::size_t last_file_ = 0;  ///< Of these, that of the place before: nearly always, of the next too.
  std::vector<Write> writes_;  ///< One per two bytes.
  std::vector<Read> reads_;    ///< One per two bytes and warp.
};

/// Who used each element of a global buffer in the present launch. Blocks of one launch run in any order,
/// so whatever two of them do to one element, with a write by one, is a race; atomic operations among
/// themselves are not. May be used from several OS threads.
class GlobalMarks {
 public:
  /// For a buffer of `elements` elements.
  explicit GlobalMarks(std::int64_t elements);

  /// How an element is used.
  enum class Use { read, write, atomic };

  /// Block `block` of launch number `launch` (from 1) uses element `i`. `initialised`: it was given a value
  /// before any launch. Launches from number `unfinished` on may still run, for all that the thread knows;
  /// what they and this one do to an element, with a write by one, is missing_grid_wait.
  std::optional<Conflict> access(std::int64_t i, Use use, std::uint32_t launch, std::uint32_t unfinished,
                                 std::uint32_t block, bool initialised, Where where);
  /// Whether any launch wrote element `i`.
  bool written(std::int64_t i) const { return marks_[static_cast<std::size_t>(i)].writer != 0; }
  /// Nobody has written anything.
  void clear();

 private:
  /// Launch in the upper half; below it the block, or `several`, and a bit for atomic operations.
  struct Mark {
    std::atomic<std::uint64_t> writer = 0;
    std::atomic<std::uint64_t> reader = 0;
    std::atomic<const char*> file = nullptr;
    std::atomic<std::uint32_t> line = 0;
  };
  std::size_t size_;
  std::unique_ptr<Mark[]> marks_;
};

}  // namespace flashladder::simt
