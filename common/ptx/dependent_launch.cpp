// What griddepcontrol does, on the emulator.
#include "common/ptx/dependent_launch.hpp"

namespace flashladder::simt {

void wait_for_grid() {
  Cluster& cluster = *running.cluster;
  if (!cluster.launch->options->check) return;
  const unsigned warp = running.thread->warp;
  for (const auto& [waited, step] : cluster.grid_waits) {
    if (waited == warp) return;  // the first wait is enough
  }
  cluster.grid_waits.emplace_back(warp, cluster.races.begin_step(warp));
}

}  // namespace flashladder::simt
