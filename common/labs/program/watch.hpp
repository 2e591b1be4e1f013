#pragma once
#include "common/attention/tensor.hpp"
#include "common/labs/program/message.hpp"

namespace flashladder::lab {

// What the student's file does is watched in a way that it cannot avoid: the compiler puts a call before
// each load and store (-fsanitize=thread, without that tool's library) and one into each basic block
// (-fsanitize-coverage=trace-pc). The functions that they call are in watch.cpp.

/// From here on all that the student's file does is recorded; with the memory of a CPU stage's `call`,
/// where there is one. Throws Error where there is no memory for it.
void start_watching(const Forward* call);
/// Up to here.
void stop_watching();
/// What was recorded last.
Watched watched();

/// Where a program will not watch at all: takes the calls out of the basic blocks, which would cost a fifth
/// of its time. Where that cannot be done they stay.
void never_watch();

// --- what threads.cpp tells

/// All that was done before comes before all that is done from here on, by several threads or by one.
void begin_phase(bool several);
/// Now thread `id` runs, and no other one; `locked`: it holds a lock.
void begin_turn(int id, bool locked);
/// The threads may change turns here: called where one waits for others without saying so.
void let_others_go_on();

}  // namespace flashladder::lab
