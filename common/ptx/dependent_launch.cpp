// What griddepcontrol does, on the emulator.
#include "common/ptx/dependent_launch.hpp"

namespace flashladder::simt {

void wait_for_grid() {
  Block& block = *running.block;
  if (!block.launch->options->check) return;
  const unsigned warp = running.thread->warp;
  for (const auto& [waited, step] : block.grid_waits) {
    if (waited == warp) return;  // the first wait is enough
  }
  block.grid_waits.emplace_back(warp, block.races.begin_step(warp));
}

}  // namespace flashladder::simt
