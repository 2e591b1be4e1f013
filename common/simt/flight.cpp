#include "common/simt/flight.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/simt/block.hpp"

namespace flashladder::simt {
namespace {

/// Calls `body(thread)` for these lanes of a warp of the running cluster.
template <class Body>
void for_each_lane(unsigned warp, std::uint32_t lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(lanes));
    body(*running.cluster->thread[warp * warp_size + lane]);
  }
}

}  // namespace

void Knowledge::join(const Knowledge& other) {
  for (unsigned m = 0; m < phases.size(); ++m) phases[m] = std::max(phases[m], other.phases[m]);
  for (unsigned w = 0; w < wgmmas.size(); ++w) wgmmas[w] = std::max(wgmmas[w], other.wgmmas[w]);
  for (unsigned g = 0; g < begun.size(); ++g) begun[g] = std::max(begun[g], other.begun[g]);
}

void Flight::begin(bool in_cluster) {
  looks_ = in_cluster;
  copied_ = 0;
  loads_ = {};
  for (std::vector<Loads>& one : loads_until_) one.clear();
  for (OfWarp& warp : warps_) {
    warp.parts.clear();
    warp = {
        .come_to = 0, .begun = 0, .parts = std::move(warp.parts), .known = {}, .arrived = 0, .settled = 0};
  }
  begun_ = {};
  settled_ = 0;
  multiplying_ = 0;
}

Flight::Loads Flight::arrived(const Knowledge& known) const {
  Loads all;
  for (unsigned m = 0; m < loads_until_.size(); ++m) {
    const std::vector<Loads>& until = loads_until_[m];
    const std::size_t phases = std::min(until.size(), static_cast<std::size_t>(known.phases[m]));
    if (phases == 0) continue;
    all.count += until[phases - 1].count;
    all.bytes += until[phases - 1].bytes;
  }
  return all;
}

void Flight::count_all_of(const Part& part) {
  running.counts.flops_during_copies +=
      static_cast<std::uint64_t>(std::popcount(part.alone)) * part.flops_of_thread;
}

void Flight::count_parts_beside(std::uint64_t bytes) {
  const Knowledge& known = running.thread->knows;
  for (unsigned w = 0; w < multiplying_; ++w) {
    const std::size_t done = static_cast<std::size_t>(known.wgmmas[w]);
    // A warp of another block has none here, whatever is known of it.
    if (warps_[w].begun > done) running.counts.wgmma_bytes_in_flight += bytes * (warps_[w].begun - done);
  }
}

void Flight::begin_copy(std::uint64_t bytes) {
  const Thread& me = *running.thread;
  copied_ += bytes;
  if (multiplying_ == 0) return;
  count_parts_beside(bytes);
  std::vector<Part>& parts = warps_[me.warp].parts;
  for (auto part = parts.rbegin(); part != parts.rend() && part->number >= me.wgmmas_waited; ++part) {
    if ((part->alone >> me.lane & 1) == 0) continue;
    part->alone &= ~(1u << me.lane);
    running.counts.flops_during_copies += part->flops_of_thread;
  }
}

void Flight::end_copy(std::uint64_t bytes) {
  Thread& me = *running.thread;
  me.arrived += bytes;
  warps_[me.warp].arrived += bytes;
}

void Flight::begin_load(unsigned mbarrier, std::uint64_t phase, std::uint64_t bytes) {
  looks_ = true;
  ++loads_.count;
  loads_.bytes += bytes;
  std::vector<Loads>& until = loads_until_[mbarrier];
  if (until.size() <= phase) until.resize(phase + 1, until.empty() ? Loads() : until.back());
  ++until[phase].count;
  until[phase].bytes += bytes;

  count_parts_beside(bytes);
  const Knowledge& known = running.thread->knows;
  for (unsigned w = 0; w < multiplying_; ++w) {
    std::vector<Part>& parts = warps_[w].parts;
    const auto done = static_cast<std::size_t>(known.wgmmas[w]);
    const auto first = std::ranges::lower_bound(parts, done, {}, &Part::number),
               last = std::ranges::lower_bound(parts, warps_[w].begun, {}, &Part::number);
    for (auto part = first; part < last; ++part) count_all_of(*part);
    if (first < last) parts.erase(first, last);
  }
}

void Flight::come_to_wgmma(std::uint64_t flops_of_thread) {
  Thread& me = *running.thread;
  looks_ = true;
  multiplying_ = std::max(multiplying_, me.warp + 1);
  if (me.warp % 4 == 0 && me.lane == 0) begin_of_warpgroup();
  OfWarp& warp = warps_[me.warp];
  if (me.wgmmas == warp.come_to) warp.parts.push_back({warp.come_to++, flops_of_thread});
  auto part = warp.parts.end() - 1;  // nearly always
  while (part->number != me.wgmmas) --part;
  part->came |= 1u << me.lane;
  if (me.copies.empty()) {
    part->alone |= 1u << me.lane;
  } else {
    running.counts.flops_during_copies += flops_of_thread;
  }
  part->arrived += me.arrived;
  if (me.has_news) part->known.join(me.knows);
  me.has_news = false;
  if (part->came == ~0u) begin_part(warp, part);
}

void Flight::begin_of_warpgroup() {
  Knowledge& known = running.thread->knows;
  const unsigned mine = running.thread->warp / 4;
  for (unsigned g = 0; g < begun_.size(); ++g) {
    if (g != mine && begun_[g] > known.begun[g])  // another block's has begun none here
      running.counts.unordered_wgmmas += static_cast<std::uint64_t>(begun_[g] - known.begun[g]);
  }
  known.begun[mine] = ++begun_[mine];
}

void Flight::begin_part(OfWarp& warp, std::vector<Part>::iterator part) {
  ++warp.begun;
  warp.known.join(part->known);
  const Loads there = arrived(warp.known);
  const std::uint64_t copies_there = part->arrived + settled_ - warp.settled;
  running.counts.wgmma_bytes_in_flight += copied_ - copies_there + loads_.bytes - there.bytes;
  if (loads_.count != there.count) {
    count_all_of(*part);
    part->alone = 0;
  }
  if (part->alone == 0) warp.parts.erase(part);
}

void Flight::wait_for_wgmmas() {
  Thread& me = *running.thread;
  me.knows.wgmmas[me.warp] = static_cast<std::int32_t>(me.wgmmas_waited);
}

void Flight::tell(Knowledge& all) const {
  if (looks_) all.join(running.thread->knows);
}

void Flight::learn(unsigned warp, std::uint32_t lanes, const Knowledge& all) const {
  if (!looks_) return;
  for_each_lane(warp, lanes, [&](Thread& thread) {
    thread.knows.join(all);
    thread.has_news = true;
  });
}

void Flight::synchronise(std::uint32_t lanes) const {
  if (!looks_) return;
  const unsigned warp = running.thread->warp;
  Knowledge all;
  for_each_lane(warp, lanes, [&](const Thread& thread) { all.join(thread.knows); });
  learn(warp, lanes, all);
}

std::uint64_t Flight::at_block_barrier(const Knowledge& all) {
  settled_ = 0;
  for (unsigned w = 0; w < running.cluster->warps; ++w) {
    warps_[w].settled = warps_[w].arrived;
    settled_ += warps_[w].settled;
  }
  return copied_ - settled_ + loads_.bytes - arrived(all).bytes;
}

}  // namespace flashladder::simt
