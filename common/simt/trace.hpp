#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace flashladder::simt {

/// What a warp of a block did, as its first lane executed it: how a model of time knows who waits for what.
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
    end,              ///< Returns from the kernel.
  };
  /// Their names, in order.
  static constexpr std::array names = {
      "mbarrier_init", "mbarrier_arrive", "mbarrier_wait", "load",           "wgmma",
      "commit",        "wait_groups",     "barrier",       "barrier_arrive", "end"};

  Kind kind;                   ///< What.
  unsigned warp;               ///< Who.
  std::uint64_t instructions;  ///< On f32, since its step before, without the exponentials.
  std::uint64_t exponentials;  ///< Since its step before.
  std::uint64_t a;             ///< As Kind says.
  std::uint64_t b;             ///< As Kind says.
  std::uint64_t bytes;         ///< As Kind says.

  bool operator==(const Step&) const = default;  ///< Equal in each number.
};

/// The steps of all warps of one block, each warp's in its order.
using Trace = std::vector<Step>;

/// Adds a step of the running thread where its block is traced and it is a first lane.
void note(Step::Kind kind, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t bytes = 0);

}  // namespace flashladder::simt
