// What setmaxnreg does, on the emulator.
#include "common/ptx/registers.hpp"

namespace flashladder::simt {

void change_registers(int registers, bool up, Where where) {
  const char* const name = up ? "registers_up" : "registers_down";
  RegisterPool& pool = running.cluster->registers;
  int nothing = 0;
  collective(~0u, name, where, nothing, [&](int* const*) { pool.change(registers, up, where); });
  Thread& me = *running.thread;
  if (pool.waits(me.warp, me.lane)) suspend(name, where);
}

}  // namespace flashladder::simt
