#include "common/simt/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/simt/scheduler.hpp"

namespace flashladder::simt {
namespace {

/// Equal text; nearly always, it is the very same text.
bool same(const char* a, const char* b) {
  return a == b || std::strcmp(a, b) == 0;
}

/// Of two places at odds, which the report names first: the later line, whoever came first, so that a
/// report does not depend on the schedule.
bool later(Where a, Where b) {
  return a.line > b.line;
}

[[noreturn, gnu::cold, gnu::noinline]] void fail_mixed(const Meeting& meeting, std::uint32_t mask,
                                                       const char* name, Where where) {
  const bool mine_first = later(where, meeting.where);
  std::string details = std::string(name) + " (" + to_string(where) + ") and " + meeting.name + " (" +
                        to_string(meeting.where) + ") wait for the same lanes";
  if (meeting.mask != mask) details += " with different masks";
  fail(ErrorKind::mixed_collectives, mine_first ? where : meeting.where, "", details + where_all_are(),
       mine_first ? meeting.where : where);
}

// What fails is said in functions of its own: the text that they make would lie on the stack of each lane
// that waits, and be in the way of what is used.
[[noreturn, gnu::cold, gnu::noinline]] void fail_outside_mask(const char* name, Where where) {
  fail(ErrorKind::lane_outside_mask, where, "",
       std::string(name) + ": lane " + std::to_string(running.thread->lane) +
           " is not in the mask it calls with");
}
[[noreturn, gnu::cold, gnu::noinline]] void fail_lanes_gone(const char* name, Where where) {
  fail(ErrorKind::partial_mask_shuffle, where, "",
       std::string(name) + " waits for lanes that have returned from the kernel:" + where_all_are());
}
[[noreturn, gnu::cold, gnu::noinline]] void fail_too_many_groups(Where where) {
  fail(ErrorKind::mixed_collectives, where, "", "more than four groups of lanes of one warp meet at once");
}

}  // namespace

Meeting* meet(std::uint32_t mask, const char* name, Where where, void* operands) {
  Thread& me = *running.thread;
  Warp& warp = running.cluster->warp[me.warp];
  const std::uint32_t self = 1u << me.lane;
  me.accesses = 0;
  if ((mask & self) == 0) fail_outside_mask(name, where);
  if ((mask & ~warp.live) != 0) fail_lanes_gone(name, where);
  Meeting* meeting = nullptr;
  Meeting* free = warp.pending == 0 ? &warp.meetings[0] : nullptr;
  for (std::size_t i = 0; warp.pending != 0 && i < warp.meetings.size(); ++i) {
    Meeting& m = warp.meetings[i];
    if (m.arrived == 0) {
      if (free == nullptr) free = &m;
    } else if (m.mask == mask) {
      meeting = &m;
      break;  // no other pending meeting can overlap with this one
    } else if ((m.mask & mask) != 0) {
      fail_mixed(m, mask, name, where);
    }
  }
  if (meeting == nullptr) {
    if (free == nullptr) fail_too_many_groups(where);
    meeting = free;
    meeting->mask = mask;
    meeting->name = name;
    meeting->where = where;
    ++warp.pending;
  } else if (!same(meeting->name, name) || !same_place(meeting->where, where)) {
    fail_mixed(*meeting, mask, name, where);
  }
  meeting->operands[me.lane] = operands;
  meeting->arrived |= self;
  if (meeting->arrived == mask) return meeting;
  suspend(name, where);
  return nullptr;
}

void finish(Meeting& meeting) {
  const Thread& me = *running.thread;
  Warp& warp = running.cluster->warp[me.warp];
  if (running.observed) warp.log.flush(meeting.mask);
  meeting.arrived = 0;
  --warp.pending;
  wake(me.warp, meeting.mask & ~(1u << me.lane));
}

std::uint32_t shuffle_bits(const char* name, std::uint32_t mask, std::uint32_t value, unsigned source,
                           Where where) {
  ShuffleOperands mine = {value, 0, source};
  collective(mask, name, where, mine, [&](ShuffleOperands* const* lanes) {
    ++running.counts.shuffles;
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      ShuffleOperands& lane = *lanes[std::countr_zero(rest)];
      if ((mask >> lane.source & 1) == 0)
        fail(ErrorKind::lane_outside_mask, where, "",
             std::string(name) + " reads lane " + std::to_string(lane.source) +
                 ", which is not in the mask");
      lane.result = lanes[lane.source]->value;
    }
  });
  return mine.result;
}

void synchronise_warp(std::uint32_t mask, Where where) {
  int nothing = 0;
  collective(mask, "__syncwarp", where, nothing, [mask](int* const*) {
    ++running.counts.syncwarps;
    running.thread->block->flight.synchronise(mask);
    if (!running.cluster->launch->options->check) return;
    report_early_read(1u << running.thread->warp);
    running.cluster->races.synchronise(running.thread->warp);
  });
}

namespace {

/// The running thread comes to a barrier that so many threads complete; `id` is its number in traces.
void come_to(Barrier& barrier, unsigned id, unsigned threads, bool waits, const char* name, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  const bool whole_cluster = id == barrier_of_cluster, whole_block = id == 0;
  const unsigned exited = whole_cluster ? cluster.exited : me.block->exited;
  const bool check = cluster.launch->options->check;
  me.accesses = 0;
  if ((whole_block || whole_cluster) && exited != 0)
    fail(ErrorKind::barrier_short, where, "",
         std::to_string(exited) + " of the " + (whole_cluster ? "cluster's " : "block's ") +
             std::to_string(threads) +
             " threads have returned from the kernel and will never come to this barrier:" +
             where_all_are());
  if (barrier.arrived != 0 && (barrier.expected != threads ||
                               ((whole_block || whole_cluster) && !same_place(barrier.where, where)))) {
    const bool mine_first = later(where, barrier.where);
    fail(ErrorKind::divergent_barrier, mine_first ? where : barrier.where, "",
         "some threads wait at " + to_string(barrier.where) + " and others at " + to_string(where) + ":" +
             where_all_are(),
         mine_first ? barrier.where : where);
  }
  note(waits ? Step::Kind::barrier : Step::Kind::barrier_arrive, id, threads / warp_size, 0, where);
  barrier.expected = threads;
  barrier.where = where;
  barrier.members[me.warp] |= 1u << me.lane;
  if (waits) barrier.waiters[me.warp] |= 1u << me.lane;
  if (check && waits) cluster.races.arrive(barrier.clock, me.warp);
  if (check && !waits) cluster.races.release(barrier.clock, me.warp);  // what it does next comes behind it
  me.block->flight.tell(barrier.knowledge);
  if (++barrier.arrived < threads) {
    if (waits) suspend(name, where);
    return;
  }
  if (check) {
    std::uint32_t warps = 0;
    for (unsigned w = 0; w < cluster.warps; ++w) warps |= barrier.members[w] != 0 ? 1u << w : 0;
    report_early_read(warps);
  }
  if (whole_cluster) {
    running.counts.barriers += cluster.block.size();
  } else {
    ++(whole_block ? running.counts.barriers : running.counts.named_barriers);
  }
  if (whole_block) {
    const std::uint64_t bytes = me.block->flight.at_block_barrier(barrier.knowledge);
    running.counts.bytes_in_flight += bytes;
    cluster.most_bytes_in_flight = std::max(cluster.most_bytes_in_flight, bytes);
  }
  for (unsigned w = 0; w < cluster.warps; ++w) {
    if (barrier.members[w] == 0) continue;
    if (running.observed) cluster.warp[w].log.flush(barrier.members[w]);
    if (check) cluster.races.leave(barrier.clock, w, barrier.waiters[w] != 0);
    me.block->flight.learn(w, barrier.waiters[w], barrier.knowledge);
    wake(w, w == me.warp ? barrier.waiters[w] & ~(1u << me.lane) : barrier.waiters[w]);
  }
  barrier = {};
}

}  // namespace

void barrier(unsigned id, unsigned threads, bool waits, const char* name, Where where) {
  Block& block = *running.thread->block;
  const unsigned of_block = running.cluster->block_threads;
  if (id >= block.barrier.size() || threads == 0 || threads % warp_size != 0 || threads > of_block)
    fail(ErrorKind::deadlock, where, "",
         std::string(name) + " on barrier " + std::to_string(id) + " for " + std::to_string(threads) +
             " threads can never complete: barriers are 0 to 15, threads come in whole warps, and the "
             "block has " +
             std::to_string(of_block));
  come_to(block.barrier[id], id, threads, waits, name, where);
}

void synchronise_cluster(Where where) {
  Cluster& cluster = *running.cluster;
  come_to(cluster.barrier, barrier_of_cluster, cluster.threads, true, "cluster_sync", where);
}

}  // namespace flashladder::simt
