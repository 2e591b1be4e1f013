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

/// A place in a shared array.
struct Place {
  SharedArray* array;
  std::byte* at;
};

/// Where a block has what the running one has at a place.
Place place_in(const Block& block, const Place& mine) {
  SharedArray* const array = running.cluster->shared.of_block(block.rank, *mine.array);
  return {array, array->data + (mine.at - mine.array->data)};
}

}  // namespace

void arrive_in_block(int rank, SharedArray* array, std::byte* at, Where where) {
  Block& block = other_block(rank, where);
  Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  if (cluster.launch->options->check && me.block != &block)
    block.arrived[me.warp] = {cluster.races.step_of_warp(me.warp), where};
  const Place bar = place_in(block, {array, at});
  require_fenced(find_mbarrier(bar.array, bar.at, "mbarrier_arrive_in", where), "another block", where);
  arrive_at_mbarrier(bar.array, bar.at, where);
}

void store_in_block(int rank, SharedArray* array, std::byte* at, int x, SharedArray* bar_array,
                    std::byte* bar_at, Where where) {
  const Block& block = other_block(rank, where);
  Cluster& cluster = *running.cluster;
  const Place to = place_in(block, {array, at}), its_bar = place_in(block, {bar_array, bar_at});
  Mbarrier& bar = find_mbarrier(its_bar.array, its_bar.at, "store_in", where);
  begin_bytes(bar, sizeof x, where);
  write_by_unit(bar, *to.array, cluster.shared.offset_of(to.at), sizeof x, 0, where);
  cluster.units.add([at_there = to.at, x, &bar] {
    std::memcpy(at_there, &x, sizeof x);
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
