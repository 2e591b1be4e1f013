#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/global_buffer.hpp"
#include "common/simt/kernel_error.hpp"
#include "common/simt/ledger.hpp"
#include "common/simt/races.hpp"

namespace flashladder::simt {

struct Block;
struct Thread;

/// Operations on f32, as a Step has them.
struct Arithmetic {
  std::uint64_t instructions = 0;  ///< Without exponentials; a fused multiply-add is one.
  std::uint64_t exponentials = 0;  ///< To any base.
};

/// Bytes of a buffer in global memory that a step has accessed: the first and the last.
struct Touched {
  std::size_t slot;      ///< GlobalBuffer::slot.
  GlobalMarks::Use use;  ///< How.
  std::int64_t first;    ///< Byte of the buffer.
  std::int64_t last;     ///< Likewise.
};

/// A number of the watched row that a kernel has shown by probe().
struct Shown {
  const char* name;  ///< "m", "l" or "O~", as there.
  int column;        ///< As there.
  float value;       ///< As there.
};

/// What a warp of a block did: how a model of time knows who waits for what. What all lanes do is a step
/// once, as the first lane executes it; what one lane does for all, at mbarriers and with TMA, whichever it
/// is.
struct Step {
  /// What it did, and what `a` and `b` are then.
  enum class Kind : std::uint8_t {
    mbarrier_init,    ///< mbarrier a, of b arrivals.
    mbarrier_arrive,  ///< At mbarrier a, in its phase b.
    mbarrier_wait,    ///< Until phase b of mbarrier a has ended.
    load,             ///< Tells TMA to load `bytes` bytes, which belong to phase b of mbarrier a.
    wgmma,            ///< Begins one of a columns.
    commit,           ///< Makes a group of those since the last one.
    wait_groups,      ///< Until a groups are left.
    barrier,          ///< Comes to barrier a, for b warps, and waits.
    barrier_arrive,   ///< Comes to it, and goes on.
    copy_commit,      ///< Makes a group of its asynchronous copies since the last one.
    copy_wait,        ///< Until a groups of them are left.
    tile,             ///< Comes to the block's tile a, from 1.
    scores,           ///< Has computed elements of S or P, which it shows by probe(),
    softmax,          ///< of m or l,
    output,           ///< or of O or O~.
    end,              ///< Returns from the kernel.
  };
  /// Their names, in order.
  static constexpr std::array names = {"mbarrier_init",  "mbarrier_arrive", "mbarrier_wait", "load",
                                       "wgmma",          "commit",          "wait_groups",   "barrier",
                                       "barrier_arrive", "copy_commit",     "copy_wait",     "tile",
                                       "scores",         "softmax",         "output",        "end"};

  Kind kind;                   ///< What.
  unsigned warp;               ///< Who.
  std::uint64_t instructions;  ///< On f32, since its step before, without the exponentials.
  std::uint64_t exponentials;  ///< Since its step before.
  std::uint64_t a;             ///< As Kind says.
  std::uint64_t b;             ///< As Kind says.
  std::uint64_t bytes;         ///< As Kind says.
  Where where;                 ///< In the source.
  /// What all lanes of the warp have counted since their step before: the counter's number in
  /// BlockTrace::counters, and how much.
  std::vector<std::pair<unsigned, std::uint64_t>> counted;
  std::vector<Touched> touched;  ///< By all lanes, likewise.
  std::vector<Shown> shown;      ///< Likewise.
};

/// The part of a tile of scores that a warp computes: those that it has shown by probe().
struct TilePart {
  unsigned warp;                                     ///< Who.
  std::size_t tile;                                  ///< Which tile of the block, from 1.
  std::int64_t head;                                 ///< As probe() says it.
  int first_row;                                     ///< Of the head.
  int last_row;                                      ///< Likewise.
  int first_key;                                     ///< Likewise.
  int last_key;                                      ///< Likewise.
  bool operator==(const TilePart&) const = default;  ///< Equal in each number.
};

/// A shared array.
struct SharedPart {
  std::string name;      ///< As in the ledger.
  std::uint32_t bytes;   ///< Size.
  std::uint32_t offset;  ///< Where it begins.
};

/// What a block did.
struct BlockTrace {
  std::vector<Step> steps;                   ///< Of all warps, each warp's in its order.
  std::vector<TilePart> parts;               ///< Of all warps.
  std::vector<bool> masked;                  ///< By tile, from 1: whether it was masked.
  std::vector<std::string> counters;         ///< What Step::counted counts: names as in Ledger::entries().
  std::vector<GlobalBuffer::Label> buffers;  ///< By slot.
  std::uint32_t shared_bytes = 0;            ///< Of shared memory.
  /// Shared arrays, as they lie there: one may have the place of another. A name may come again.
  std::vector<SharedPart> shared;
};

/// What a launch did.
struct LaunchTrace {
  std::string kernel;              ///< Its name.
  dim3 grid;                       ///< Blocks.
  unsigned warps;                  ///< Of a block.
  std::vector<BlockTrace> blocks;  ///< By number. Those that did not run have no steps.
};

/// What counted launches did, and which row is watched while they do.
struct Trace {
  std::int64_t head = 0;              ///< Of the watched row.
  int row = 0;                        ///< The watched row.
  std::vector<LaunchTrace> launches;  ///< In order.
};

/// As one line of JSON: simt/README.md says what is in it.
std::string to_json(const Trace& trace);

/// Writes down what the block that an OS thread runs does. It counts by differences: what was counted
/// between the moment in which a thread goes on and that in which another one does is the thread's.
class Recorder {
 public:
  /// Block `rank` of the running cluster begins; `into` gets what it does.
  Recorder(BlockTrace& into, const Trace& trace, unsigned rank);
  /// The running thread goes on, and counts from now.
  void resume();
  /// Another thread is to go on.
  void pause();
  /// The running thread does a step.
  void note(Step::Kind kind, std::uint64_t a, std::uint64_t b, std::uint64_t bytes, Where where);
  /// The running thread accesses bytes of global memory.
  void touch(std::size_t slot, GlobalMarks::Use use, std::int64_t byte, std::int64_t bytes);
  /// The running thread has an intermediate: as Emulator::probe.
  void show(const char* name, std::int64_t head, int row, int column, float value, Where where);
  /// The block has ended, or has failed.
  void finish(const Block& block);

 private:
  /// What a thread has done since its last step, and which of the warp's steps that was.
  struct Lane {
    Arithmetic arithmetic;
    std::vector<std::uint64_t> counts;
    std::vector<Touched> touched;
    std::vector<Shown> shown;
    std::size_t next = 0;               ///< Of the warp's steps: the first that may be its next one.
    std::deque<Step> ahead;             ///< Steps of its own that the first lane has not come to yet.
    Step::Kind last = Step::Kind::end;  ///< Its last step.
  };

  Lane& lane_of(const Thread& thread);
  unsigned warp_of(const Thread& thread) const;  ///< In the block.
  void count();
  Step take(Step::Kind kind, std::uint64_t a, std::uint64_t b, std::uint64_t bytes, Where where);
  void settle(unsigned warp, Lane& lane);
  void push(unsigned warp, Step step);
  Step* find(unsigned warp, const Step& like);
  Step& step_of(unsigned warp, std::size_t number) { return into_.steps[steps_[warp][number]]; }

  BlockTrace& into_;
  const Trace& trace_;
  unsigned first_warp_;                          ///< Of the block, in the cluster.
  std::vector<Lane> lanes_;                      ///< By thread.
  std::vector<std::vector<std::size_t>> steps_;  ///< By warp: where its steps are.
  std::vector<std::size_t> part_of_;             ///< By warp: where its last part of a tile is.
  std::vector<std::uint64_t> before_;            ///< The counters when the running thread went on.
  std::vector<std::uint64_t> now_;               ///< Used again and again by count().
  Arithmetic arithmetic_;                        ///< Likewise.
};

/// The running thread does a step: for the trace, where there is one.
void note(Step::Kind kind, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t bytes = 0,
          Where where = {});

/// Is Emulator::probe while a trace is made.
void show_to_trace(const char* name, std::int64_t head, int row, int column, float value, Where where);

}  // namespace flashladder::simt
