#pragma once
// The policy of stage 79; attention.cu beside it explains its idea.
#include "common/ptx/vote.hpp"
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_79 {
namespace {

using stage_70::skipped_block;

/// A row or a column of a block map: blocks of keys that some rows see, or the reverse. A warp asks for 32
/// of them at a time, a lane for each, and keeps the answers as bits.
struct Line {
  gmem<const int> live;  // of its first block
  int step;              // from one block to the next
  int blocks;            // how many; 0: there is no map, and nothing is skipped
  int known;             // of which 32 blocks `bits` are; -1: of none
  unsigned bits;         // 1 where a block is live

  /// The first position from x on that is in a live block; `end` where there is none before it.
  __device__ __forceinline__ int next(int x, int end) {
    if (blocks == 0) return x;
    for (int block = x / skipped_block; block * skipped_block < end; block = 32 * (known + 1)) {
      if (block / 32 != known) {
        known = block / 32;
        const int mine = 32 * known + threadIdx.x % 32;
        bits = lanes_where(mine < blocks && live[mine * step] != 0);
      }
      const unsigned from_here = bits >> block % 32;
      if (from_here == 0) continue;
      const int first = (block + lowest_bit(from_here)) * skipped_block;
      return first >= end ? end : first > x ? first : x;
    }
    return end;
  }
};

/// Of the policy Base, blocks that a map leaves out are skipped.
template <class Base>
struct LiveBlocks : Base {
  gmem<const int> live;                // [batch, heads, rows, keys]
  std::int64_t batch_step, head_step;  // from one to the next; 0 where all share the same
  int rows, keys;                      // blocks of each; 0: there is no map

  struct Head : Base::Head {
    std::int64_t begin;  // of its map
  };
  __device__ __forceinline__ Head head(const Sizes& n, int b, int h) const {
    return {Base::head(n, b, h), b * batch_step + h * head_step};
  }

  static constexpr bool each_key_is_seen = false;
  static constexpr bool skips_tiles = true;
  using LiveTiles = Line;
  __device__ __forceinline__ Line live_keys(const Head& head, int i) const {
    return {live + (head.begin + i / skipped_block * std::int64_t{keys}), 1, keys, -1, 0};
  }
  __device__ __forceinline__ Line live_rows(const Head& head, int j) const {
    return {live + (head.begin + j / skipped_block), keys, rows, -1, 0};
  }
};

}  // namespace
}  // namespace flashladder::stage_79
