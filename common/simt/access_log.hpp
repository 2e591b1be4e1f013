#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/simt/ledger.hpp"

namespace flashladder::simt {

/// Which memory an access goes to, and which way.
enum class AccessKind : std::uint8_t {
  global_load,
  global_store,
  global_atomic,
  shared_load,
  shared_store
};

/// Whether it goes to shared memory.
constexpr bool is_shared(AccessKind kind) {
  return kind >= AccessKind::shared_load;
}

/// One access of one lane.
struct Access {
  std::uint64_t address;  ///< Shared: byte in the block's memory. Global: byte in the buffer.
  void* traffic;          ///< The SharedTraffic or GlobalTraffic to charge.
  std::uint32_t line;     ///< Of the source.
  std::uint8_t bytes;     ///< 2, 4, 8 or 16.
  std::uint8_t lane;      ///< In the warp.
  AccessKind kind;        ///< Where to.
};

/// What a warp instruction costs, against the least that the same bytes could cost.
struct Cost {
  std::uint64_t actual;  ///< Wavefronts or sectors.
  std::uint64_t ideal;   ///< The fewest.
  std::uint64_t bytes;   ///< Distinct bytes requested.
};

/// Wavefronts of one shared-memory instruction. The hardware serves 32 lanes at a time when each asks for
/// at most 4 bytes, 16 lanes for 8 bytes and 8 for 16; each such group takes as many wavefronts as the most
/// distinct 4-byte words that fall into one of the 32 banks. `lanes`: the active lanes, in order.
Cost shared_cost(std::span<const Access* const> lanes);

/// 32-byte sectors of one global-memory instruction. Ideal: the distinct bytes requested, in whole sectors.
/// Buffers start on a sector.
Cost global_cost(std::span<const Access* const> lanes);

/// The accesses of a warp's lanes since they last met, from which its memory instructions are put together
/// again: the k-th access of each lane, or, where lanes took different ways, the k-th access of each lane
/// at one source line.
class WarpLog {
 public:
  /// Notes an access of lane `access.lane`.
  void record(const Access& access) { lanes_[access.lane].push_back(access); }
  /// Charges what the lanes in the mask did to its buffers, and forgets it.
  void flush(std::uint32_t lanes);
  /// Forgets everything.
  void clear();

 private:
  std::array<std::vector<Access>, 32> lanes_;
};

}  // namespace flashladder::simt
