#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <random>

#include "common/simt/options.hpp"

namespace flashladder::simt {

/// Which lanes of which warps of a cluster can run, and who is next.
class ReadyLanes {
 public:
  /// A lane of a warp.
  struct Lane {
    unsigned warp;  ///< Which warp.
    unsigned lane;  ///< Which of its lanes.
  };

  /// Nobody can run.
  void clear() { *this = {}; }
  /// These lanes of a warp can run.
  void add(unsigned warp, std::uint32_t lanes) {
    if (lanes == 0) return;
    lanes_[warp] |= lanes;
    warps_ |= 1u << warp;
  }
  /// This lane cannot.
  void remove(Lane lane) {
    lanes_[lane.warp] &= ~(1u << lane.lane);
    if (lanes_[lane.warp] == 0) warps_ &= ~(1u << lane.warp);
  }
  /// Whether nobody can run.
  bool empty() const { return warps_ == 0; }

  /// Who runs after `last`. Stays in last's warp while it can, except at random. Not to be called when
  /// empty.
  Lane next(Lane last, Schedule schedule, std::mt19937_64& random) const {
    switch (schedule) {
      case Schedule::forward: {
        const unsigned warp = at_or_after(warps_, last.warp);
        return {warp, at_or_after(lanes_[warp], warp == last.warp ? (last.lane + 1) % 32 : 0)};
      }
      case Schedule::reverse: {
        const unsigned warp = lanes_[last.warp] != 0 ? last.warp : highest(warps_);
        return {warp, highest(lanes_[warp])};
      }
      case Schedule::random:
        break;
    }
    const unsigned warp = any(warps_, random);
    return {warp, any(lanes_[warp], random)};
  }

 private:
  static unsigned at_or_after(std::uint32_t set, unsigned first) {
    return (static_cast<unsigned>(std::countr_zero(std::rotr(set, static_cast<int>(first)))) + first) % 32;
  }
  static unsigned highest(std::uint32_t set) { return 31 - static_cast<unsigned>(std::countl_zero(set)); }
  static unsigned any(std::uint32_t set, std::mt19937_64& random) {
    for (auto skip = random() % static_cast<unsigned>(std::popcount(set)); skip != 0; --skip)
      set &= set - 1;
    return static_cast<unsigned>(std::countr_zero(set));
  }

  std::array<std::uint32_t, 32> lanes_ = {};
  std::uint32_t warps_ = 0;
};

}  // namespace flashladder::simt
