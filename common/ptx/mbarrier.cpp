// What mbarriers do, on the emulator.
#include "common/ptx/mbarrier.hpp"

#include <algorithm>
#include <string>

namespace flashladder::simt {
namespace {

constexpr int most_arrivals = (1 << 20) - 1;

[[noreturn]] void fail_misused(const SharedArray& array, std::uint32_t offset, Where where,
                               const std::string& details, Where other = {}) {
  fail(ErrorKind::mbarrier_misuse, where, array.name, name_of_mbarrier(array, offset) + " " + details,
       other);
}

}  // namespace

Mbarrier& find_mbarrier(SharedArray* array, const std::byte* at, const char* word, Where where) {
  Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  const std::uint32_t offset = cluster.shared.offset_of(at);
  const auto found = std::ranges::find(cluster.mbarriers, offset, &Mbarrier::offset);
  const auto misused = [&](Where other) {
    fail_misused(*array, offset, where,
                 std::string("is used by ") + word +
                     ", and is not initialised, or no barrier lies between its mbarrier_init and this",
                 other);
  };
  if (found == cluster.mbarriers.end()) misused({});
  if (cluster.launch->options->check) {
    if (const auto conflict =
            cluster.races.access(me.warp, me.lane, offset, sizeof(mbarrier), array->granule, false, where))
      misused(conflict->where);
  }
  return *found;
}

void end_phase_if_complete(Mbarrier& bar) {
  if (bar.pending != 0 || bar.bytes != 0) return;
  bar.ended = bar.now;
  if (running.cluster->launch->options->check)
    running.cluster->races.end_phase(bar.ended, bar.number, bar.phase);
  ++bar.phase;
  bar.known = bar.told;
  bar.known.phases[bar.number] = static_cast<std::int32_t>(bar.phase);
  bar.pending = bar.arrivals;
  bar.expected = bar.begun = 0;
  for (unsigned w = 0; w < running.cluster->warps; ++w) {
    if (bar.waiters[w] == 0) continue;
    bar.waited = bar.phase;
    // Now, and not when they run: by then another phase may have ended, which they do not wait for.
    if (running.cluster->launch->options->check) running.cluster->races.acquire(bar.ended, w);
    running.thread->block->flight.learn(w, bar.waiters[w], bar.known);
    wake(w, bar.waiters[w]);
    bar.waiters[w] = 0;
  }
}

void init_mbarrier(SharedArray* array, std::byte* at, int arrivals, Where where) {
  Cluster& cluster = *running.cluster;
  const std::uint32_t offset = cluster.shared.offset_of(at);
  if (arrivals < 1 || arrivals > most_arrivals)
    fail_misused(*array, offset, where,
                 "is to take " + std::to_string(arrivals) + " arrivals; 1 to 1048575 are possible");
  if (std::ranges::find(cluster.mbarriers, offset, &Mbarrier::offset) != cluster.mbarriers.end())
    fail_misused(*array, offset, where, "is initialised a second time");
  const auto number = static_cast<std::uint32_t>(cluster.mbarriers.size());
  if (number == SharedRaces::most_mbarriers)
    fail_misused(*array, offset, where,
                 "is one too many: a block, with the others of its cluster, has at most " +
                     std::to_string(number) + " here");
  array->traffic.written_bytes += sizeof(mbarrier);
  if (running.observed) observe_shared(*array, at, sizeof(mbarrier), true, where.file, where.line);
  const auto count = static_cast<std::uint32_t>(arrivals);
  note(Step::Kind::mbarrier_init, number, count, 0, where);
  cluster.mbarriers.push_back({.array = array,
                               .offset = offset,
                               .number = number,
                               .arrivals = count,
                               .pending = count,
                               .initialised_by = running.thread->linear});
}

void fence_mbarriers() {
  for (Mbarrier& bar : running.cluster->mbarriers) {
    if (bar.initialised_by != running.thread->linear || bar.fenced) continue;
    bar.fenced = true;
    bar.fenced_at = running.cluster->races.step_of_warp(running.thread->warp);
  }
}

void arrive_at_mbarrier(SharedArray* array, std::byte* at, Where where) {
  Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  Mbarrier& bar = find_mbarrier(array, at, "mbarrier_arrive", where);
  ++running.counts.mbarrier_arrivals;
  if (bar.pending == 0)
    fail_misused(*array, bar.offset, where,
                 "has had all " + std::to_string(bar.arrivals) + " arrivals of phase " +
                     std::to_string(bar.phase) + ", and bytes are still to come: this is one too many");
  if (cluster.launch->options->check) cluster.races.release(bar.now, me.warp);
  me.block->flight.tell(bar.told);
  note(Step::Kind::mbarrier_arrive, bar.number, bar.phase, 0, where);
  --bar.pending;
  if (bar.pending == 0) require_announced(bar);
  end_phase_if_complete(bar);
}

void require_fenced(const Mbarrier& bar, const char* others, Where where) {
  const Cluster& cluster = *running.cluster;
  const bool known =
      !cluster.launch->options->check ||
      cluster.races.knows(running.thread->warp, bar.initialised_by / warp_size, bar.fenced_at);
  if (bar.fenced && known) return;
  fail(ErrorKind::mbarrier_misuse, where, bar.array->name,
       std::string(others) + " need not see that " + name_of(bar) +
           " is initialised: fence_mbarrier_init() is missing behind its mbarrier_init");
}

void require_announced(const Mbarrier& bar) {
  if (bar.begun <= bar.expected) return;
  fail(ErrorKind::wrong_expected_bytes, bar.copied_by, bar.array->name,
       name_of(bar) + " is told of " + std::to_string(bar.expected) + " bytes in phase " +
           std::to_string(bar.phase) + ", and copies of " + std::to_string(bar.begun) +
           " have begun with this one");
}

void wait_at_mbarrier(SharedArray* array, std::byte* at, int parity, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  Mbarrier& bar = find_mbarrier(array, at, "mbarrier_wait", where);
  ++running.counts.mbarrier_waits;
  if (parity != 0 && parity != 1)
    fail_misused(*array, bar.offset, where,
                 "is waited for with parity " + std::to_string(parity) + ": give the phase modulo 2");
  const bool ended = (bar.phase & 1) != static_cast<std::uint64_t>(parity);  // the phase before
  if (bar.phase > 0 || !ended)
    note(Step::Kind::mbarrier_wait, bar.number, ended ? bar.phase - 1 : bar.phase, 0, where);
  if (ended) {
    bar.waited = std::max(bar.waited, bar.phase);
    if (cluster.launch->options->check) cluster.races.acquire(bar.ended, me.warp);
    me.block->flight.learn(me.warp, 1u << me.lane, bar.known);
    return;
  }
  me.accesses = 0;
  bar.waiters[me.warp] |= 1u << me.lane;
  me.mbarrier = &bar;
  me.parity = static_cast<unsigned>(parity);
  suspend("mbarrier_wait", where);
  me.mbarrier = nullptr;
}

}  // namespace flashladder::simt
