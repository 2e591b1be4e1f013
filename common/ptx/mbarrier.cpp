// What mbarriers do, on the emulator.
#include "common/ptx/mbarrier.hpp"

#include <algorithm>
#include <string>

namespace flashladder::simt {
namespace {

constexpr int most_arrivals = (1 << 20) - 1;

std::uint32_t offset_of(const std::byte* at) {
  return static_cast<std::uint32_t>(at - running.block->shared.base());
}

std::string element(const SharedArray& array, std::uint32_t offset) {
  return std::string(array.name) + "[" + std::to_string((offset - array.offset) / sizeof(mbarrier)) + "]";
}

}  // namespace

Mbarrier& find_mbarrier(SharedArray* array, const std::byte* at, const char* word, Where where) {
  Block& block = *running.block;
  const Thread& me = *running.thread;
  const std::uint32_t offset = offset_of(at);
  const auto found = std::ranges::find(block.mbarriers, offset, &Mbarrier::offset);
  const auto misused = [&](Where other) {
    fail(ErrorKind::mbarrier_misuse, where, array->name,
         std::string(word) + " uses " + element(*array, offset) +
             ", and no barrier lies between its mbarrier_init and this",
         other);
  };
  if (found == block.mbarriers.end()) misused({});
  if (block.launch->options->check) {
    if (const auto conflict =
            block.races.access(me.warp, me.lane, offset, sizeof(mbarrier), array->granule, false, where))
      misused(conflict->where);
  }
  return *found;
}

void end_phase_if_complete(Mbarrier& bar) {
  if (bar.pending != 0 || bar.bytes != 0) return;
  bar.ended = bar.now;
  if (running.block->launch->options->check)
    running.block->races.end_phase(bar.ended, bar.number, bar.phase);
  ++bar.phase;
  bar.pending = bar.arrivals;
  bar.expected = bar.begun = 0;
  for (unsigned w = 0; w < running.block->warps; ++w) {
    wake(w, bar.waiters[w]);
    bar.waiters[w] = 0;
  }
}

void init_mbarrier(SharedArray* array, std::byte* at, int arrivals, Where where) {
  Block& block = *running.block;
  if (arrivals < 1 || arrivals > most_arrivals) {
    fail(ErrorKind::mbarrier_misuse, where, array->name,
         element(*array, offset_of(at)) + " is to take " + std::to_string(arrivals) +
             " arrivals; 1 to 1048575 are possible");
  }
  array->traffic.written_bytes += sizeof(mbarrier);
  if (running.observed) observe_shared(*array, at, sizeof(mbarrier), true, where.file, where.line);
  const auto count = static_cast<std::uint32_t>(arrivals);
  const std::uint32_t offset = offset_of(at);
  const auto found = std::ranges::find(block.mbarriers, offset, &Mbarrier::offset);
  const auto number = static_cast<std::uint32_t>(found - block.mbarriers.begin());
  if (number == SharedRaces::most_mbarriers) {
    fail(ErrorKind::mbarrier_misuse, where, array->name,
         "a block has at most " + std::to_string(number) + " mbarriers here");
  }
  Mbarrier& bar = found == block.mbarriers.end() ? block.mbarriers.emplace_back() : *found;
  bar = {.array = array,
         .offset = offset,
         .number = number,
         .arrivals = count,
         .pending = count,
         .initialised_by = running.thread->linear};
}

void fence_mbarriers() {
  for (Mbarrier& bar : running.block->mbarriers) {
    if (bar.initialised_by == running.thread->linear) bar.fenced = true;
  }
}

void arrive_at_mbarrier(SharedArray* array, std::byte* at, Where where) {
  Block& block = *running.block;
  Thread& me = *running.thread;
  Mbarrier& bar = find_mbarrier(array, at, "mbarrier_arrive", where);
  ++running.counts.mbarrier_arrivals;
  me.accesses = 0;
  if (block.launch->options->check) block.races.release(bar.now, me.warp);
  --bar.pending;
  end_phase_if_complete(bar);
}

void wait_at_mbarrier(SharedArray* array, std::byte* at, int parity, Where where) {
  Block& block = *running.block;
  Thread& me = *running.thread;
  Mbarrier& bar = find_mbarrier(array, at, "mbarrier_wait", where);
  ++running.counts.mbarrier_waits;
  me.accesses = 0;
  if ((bar.phase & 1) == static_cast<std::uint64_t>(parity & 1)) {
    bar.waiters[me.warp] |= 1u << me.lane;
    me.mbarrier = &bar;
    me.parity = static_cast<unsigned>(parity & 1);
    suspend("mbarrier_wait", where);
    me.mbarrier = nullptr;
  }
  if (block.launch->options->check) block.races.acquire(bar.ended, me.warp);
}

}  // namespace flashladder::simt
