#include "common/simt/flight.hpp"

#include <algorithm>
#include <bit>

#include "common/simt/block.hpp"

namespace flashladder::simt {
namespace {

/// Calls `body(thread)` for these lanes of a warp of the running block.
template <class Body>
void for_each_lane(unsigned warp, std::uint32_t lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(lanes));
    body(*running.block->thread[warp * warp_size + lane]);
  }
}

}  // namespace

void Knowledge::join(const Knowledge& other) {
  for (unsigned m = 0; m < phases.size(); ++m) phases[m] = std::max(phases[m], other.phases[m]);
  for (unsigned w = 0; w < wgmmas.size(); ++w) wgmmas[w] = std::max(wgmmas[w], other.wgmmas[w]);
}

void Flight::begin() {
  looks_ = false;
  copied_ = 0;
  loads_ = {};
  for (std::vector<Loads>& one : loads_until_) one.clear();
  groups_.fill({});
  groups_used_ = 0;
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

std::size_t Flight::done(const Thread& thread, unsigned warpgroup) {
  const auto first = thread.knows.wgmmas.begin() + 4 * warpgroup;
  return static_cast<std::size_t>(*std::min_element(first, first + 4));
}

void Flight::count_wgmmas_beside(std::uint64_t bytes) {
  for (unsigned g = 0; g < groups_used_; ++g)
    running.counts.wgmma_bytes_in_flight += bytes * (groups_[g].begun - done(*running.thread, g));
}

void Flight::begin_copy(std::uint64_t bytes) {
  const Thread& me = *running.thread;
  copied_ += bytes;
  if (groups_used_ == 0) return;
  count_wgmmas_beside(bytes);
  std::deque<Product>& products = groups_[me.warp / 4].products;
  for (auto one = products.rbegin(); one != products.rend() && one->number >= me.wgmmas_waited; ++one) {
    if (!one->alone[me.linear % group_threads]) continue;
    one->alone.reset(me.linear % group_threads);
    running.counts.flops_during_copies += one->flops_of_thread;
  }
}

void Flight::end_copy(std::uint64_t bytes) {
  Thread& me = *running.thread;
  me.arrived += bytes;
  groups_[me.warp / 4].arrived += bytes;
}

void Flight::begin_load(unsigned mbarrier, std::uint64_t phase, std::uint64_t bytes) {
  looks_ = true;
  ++loads_.count;
  loads_.bytes += bytes;
  std::vector<Loads>& until = loads_until_[mbarrier];
  if (until.size() <= phase) until.resize(phase + 1, until.empty() ? Loads() : until.back());
  ++until[phase].count;
  until[phase].bytes += bytes;

  count_wgmmas_beside(bytes);
  for (unsigned g = 0; g < groups_used_; ++g) {
    std::deque<Product>& products = groups_[g].products;
    const auto first = std::ranges::lower_bound(products, done(*running.thread, g), {}, &Product::number),
               last = std::ranges::lower_bound(products, groups_[g].begun, {}, &Product::number);
    for (auto one = first; one < last; ++one)
      running.counts.flops_during_copies += one->alone.count() * one->flops_of_thread;
    if (first < last) products.erase(first, last);
  }
}

void Flight::come_to_wgmma(std::uint64_t flops_of_thread) {
  Thread& me = *running.thread;
  looks_ = true;
  groups_used_ = std::max(groups_used_, me.warp / 4 + 1);
  Group& group = groups_[me.warp / 4];
  if (me.wgmmas == group.come_to) group.products.push_back({group.come_to++, flops_of_thread, {}});
  auto found = group.products.end() - 1;  // nearly always
  while (found->number != me.wgmmas) --found;
  Product& product = *found;
  if (me.copies.empty()) {
    product.alone.set(me.linear % group_threads);
  } else {
    running.counts.flops_during_copies += flops_of_thread;
  }
  product.arrived_of_group += me.arrived;
  if (me.has_news) product.known.join(me.knows);
  me.has_news = false;
}

void Flight::begin_wgmma(unsigned warpgroup) {
  Group& group = groups_[warpgroup];
  const auto product = std::ranges::lower_bound(group.products, group.begun++, {}, &Product::number);
  group.known.join(product->known);
  const Loads there = arrived(group.known);
  std::uint64_t copies_there = product->arrived_of_group;
  for (unsigned g = 0; g < groups_.size(); ++g) copies_there += g == warpgroup ? 0 : groups_[g].settled;
  running.counts.wgmma_bytes_in_flight += copied_ - copies_there + loads_.bytes - there.bytes;
  if (loads_.count != there.count) {
    running.counts.flops_during_copies += product->alone.count() * product->flops_of_thread;
    product->alone.reset();
  }
  if (product->alone.none()) group.products.erase(product);
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
  std::uint64_t bytes = copied_ + loads_.bytes - arrived(all).bytes;
  for (Group& group : groups_) {
    group.settled = group.arrived;
    bytes -= group.settled;
  }
  return bytes;
}

}  // namespace flashladder::simt
