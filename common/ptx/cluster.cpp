// What clusters do, on the emulator.
#include "common/ptx/cluster.hpp"

#include <cstring>
#include <string>

namespace flashladder::simt {
namespace {

/// The block that a thread names, which it may use.
Block& other_block(int rank, Where where) {
  Cluster& cluster = *running.cluster;
  if (rank < 0 || rank >= static_cast<int>(cluster.block.size()))
    fail(ErrorKind::out_of_bounds_shared, where, "",
         "block " + std::to_string(rank) + " of a cluster of " + std::to_string(cluster.block.size()));
  Block& block = cluster.block[static_cast<unsigned>(rank)];
  require_running(block, where);
  return block;
}

}  // namespace

void arrive_in_block(int rank, SharedArray* array, std::byte* at, Where where) {
  Block& block = other_block(rank, where);
  Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  SharedMemory& shared = cluster.shared;
  if (cluster.launch->options->check && me.block != &block)
    block.arrived[me.warp] = {cluster.races.step_of_warp(me.warp), where};
  SharedArray* const there = shared.of_block(block.rank, *array);
  std::byte* const bar = there->data + (at - array->data);
  require_fenced(find_mbarrier(there, bar, "mbarrier_arrive_in", where), "another block", where);
  arrive_at_mbarrier(there, bar, where);
}

void store_in_block(int rank, SharedArray* array, std::byte* at, int x, SharedArray* bar_array,
                    std::byte* bar_at, Where where) {
  const Block& block = other_block(rank, where);
  SharedMemory& shared = running.cluster->shared;
  SharedArray& there = *shared.of_block(block.rank, *array);
  SharedArray* const bar_there = shared.of_block(block.rank, *bar_array);
  Mbarrier& bar = find_mbarrier(bar_there, bar_there->data + (bar_at - bar_array->data), "store_in", where);
  std::byte* const to = there.data + (at - array->data);
  begin_bytes(bar, sizeof x, where);
  write_by_unit(bar, there, shared.offset_of(to), sizeof x, 0, where);
  running.cluster->units.add([to, x, &bar] {
    std::memcpy(to, &x, sizeof x);
    end_bytes(bar, sizeof x);
  });
}

void require_blocks(int blocks, Where where) {
  const std::size_t here = running.cluster->block.size();
  if (here == static_cast<std::size_t>(blocks)) return;
  fail(ErrorKind::out_of_bounds_shared, where, "",
       "a copy to " + std::to_string(blocks) + " blocks, in a cluster of " + std::to_string(here));
}

}  // namespace flashladder::simt
