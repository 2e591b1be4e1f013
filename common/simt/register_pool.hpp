#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "common/simt/kernel_error.hpp"

namespace flashladder::simt {

/// The registers of the blocks of a cluster: how many the threads of each warp own, and how many are free
/// for the others of its block.
///
/// What a thread owns at launch is a matter of the whole kernel: see common/ptx/registers.hpp. Here it is
/// what the launch leaves, or as many as the largest registers_up so far asks for, if that is less.
class RegisterPool {
 public:
  /// A cluster of `blocks` blocks of `threads` threads begins.
  void begin(unsigned threads, unsigned blocks);
  /// All lanes of the running thread's warp execute setmaxnreg. Gives those back, or takes them, or lets
  /// the warp wait for them.
  void change(int registers, bool up, Where where);
  /// Whether a lane must wait for the registers of its warp; it is woken when they are there.
  bool waits(unsigned warp, unsigned lane);
  /// A warp has returned from the kernel. What it owns stays its own. Fails where its warpgroup has
  /// executed a setmaxnreg that it has not.
  void retire(unsigned warp) const;
  /// Fails where a warp waits for registers: nobody can give any back.
  void report_shortage() const;

  int most = 0;    ///< The most registers that threads own after setmaxnreg; 0: it was not executed.
  int fewest = 0;  ///< The fewest, likewise.

 private:
  static constexpr unsigned most_warps = 32;
  struct Change {
    int registers;
    bool up;
    Where where;
  };
  /// Of a thread at launch.
  int at_launch() const;
  /// Of a thread of a warp.
  int of(unsigned warp) const { return owned_[warp] != 0 ? owned_[warp] : at_launch(); }
  /// Registers in the pool of a warp's block.
  int free(unsigned warp) const;
  /// A warp owns as many from now on.
  void own(unsigned warp, int registers);
  /// What of the warps of a warpgroup is at odds with the running one's `number`-th change.
  void require_same(unsigned warp, std::size_t number, const Change& mine) const;
  void require_synchronised(unsigned warp, std::size_t number, Where where);
  /// What a warpgroup's first change, any of them, is at odds with.
  void require_order() const;

  unsigned warps_ = 0;                                              ///< Of all blocks,
  unsigned warps_of_block_ = 0;                                     ///< and of one.
  int left_ = 0;                                                    ///< By the launch, of a thread.
  int largest_ = 0;                                                 ///< That registers_up asked for,
  Where largest_by_;                                                ///< and where.
  std::array<std::vector<Change>, most_warps / 4> changes_;         ///< Of each warpgroup, in order.
  std::array<std::size_t, most_warps> executed_ = {};               ///< Of them, by each warp.
  std::array<std::vector<std::uint32_t>, most_warps> executed_at_;  ///< (check) Steps in SharedRaces.
  std::array<int, most_warps> owned_ = {};                          ///< By a thread; 0: as at launch.
  std::array<int, most_warps> wanted_ = {};                         ///< That the warp waits for; or 0.
  std::array<std::uint32_t, most_warps> waiters_ = {};              ///< Its lanes that wait.
};

}  // namespace flashladder::simt
