#include "common/simt/register_pool.hpp"

#include <algorithm>
#include <string>

#include "common/simt/scheduler.hpp"

namespace flashladder::simt {
namespace {

constexpr unsigned warps_of_group = 4;

std::string name_of(int registers, bool up) {
  return (up ? "registers_up<" : "registers_down<") + std::to_string(registers) + ">";
}
std::string warp_name(unsigned warp) {
  return "warp " + std::to_string(warp % (running.cluster->block_threads / warp_size));
}
[[noreturn]] void fail_misused(Where where, const std::string& details, Where other = {}) {
  fail(ErrorKind::register_misuse, where, "", details, other);
}

}  // namespace

void RegisterPool::begin(unsigned threads, unsigned blocks) {
  constexpr unsigned of_multiprocessor = 65536, most_of_thread = 256, unit = 8;
  constexpr unsigned threads_of_group = warps_of_group * warp_size;
  const unsigned all = (threads + threads_of_group - 1) / threads_of_group * threads_of_group;
  left_ = static_cast<int>(std::min(of_multiprocessor / all / unit * unit, most_of_thread));
  warps_of_block_ = threads / warp_size;
  warps_ = blocks * warps_of_block_;
  largest_ = 0;
  for (auto& list : changes_) list.clear();
  for (auto& list : executed_at_) list.clear();
  executed_.fill(0);
  owned_.fill(0);
  wanted_.fill(0);
  waiters_.fill(0);
}

int RegisterPool::at_launch() const {
  return largest_ == 0 ? left_ : std::min(left_, largest_);
}

int RegisterPool::free(unsigned warp) const {
  const unsigned first = warp / warps_of_block_ * warps_of_block_;
  int sum = 0;
  for (unsigned w = first; w < first + warps_of_block_; ++w) sum += at_launch() - of(w);
  return sum * static_cast<int>(warp_size);
}

void RegisterPool::own(unsigned warp, int registers) {
  owned_[warp] = registers;
  most = std::max(most, registers);
  fewest = fewest == 0 ? registers : std::min(fewest, registers);
}

void RegisterPool::require_same(unsigned warp, std::size_t number, const Change& mine) const {
  const unsigned group = warp / warps_of_group;
  const Change& first = changes_[group][number];
  if (first.registers != mine.registers || first.up != mine.up || !same_place(first.where, mine.where)) {
    // The later line first, whoever came first.
    const bool mine_first = mine.where.line > first.where.line;
    const Change& one = mine_first ? mine : first;
    const Change& two = mine_first ? first : mine;
    fail_misused(one.where,
                 "warps of one warpgroup execute " + name_of(one.registers, one.up) + " (" +
                     to_string(one.where) + ") and " + name_of(two.registers, two.up) + " (" +
                     to_string(two.where) + "):" + where_all_are(),
                 two.where);
  }
  for (unsigned w = group * warps_of_group; w < (group + 1) * warps_of_group; ++w) {
    if (running.cluster->warp[w].live == 0 && executed_[w] <= number)
      fail_misused(mine.where, warp_name(w) + " of this warpgroup has returned from the kernel without " +
                                   name_of(mine.registers, mine.up));
  }
}

void RegisterPool::require_synchronised(unsigned warp, std::size_t number, Where where) {
  SharedRaces& races = running.cluster->races;
  const unsigned group = warp / warps_of_group;
  for (unsigned w = group * warps_of_group; number > 0 && w < (group + 1) * warps_of_group; ++w) {
    const auto& steps = executed_at_[w];
    if (w != warp && (steps.size() < number || !races.knows(warp, w, steps[number - 1])))
      fail_misused(where,
                   "nothing makes sure that " + warp_name(w) +
                       " of this warpgroup has executed the one before (" +
                       to_string(changes_[group][number - 1].where) + ")",
                   changes_[group][number - 1].where);
  }
  executed_at_[warp].push_back(races.begin_step(warp));
}

void RegisterPool::require_order() const {
  for (const auto& list : changes_) {
    if (list.empty()) continue;
    const Change& first = list.front();
    if (first.up ? first.registers >= at_launch() : first.registers <= at_launch()) continue;
    const bool less = at_launch() < left_;
    fail_misused(first.where,
                 name_of(first.registers, first.up) + " is executed with " + std::to_string(at_launch()) +
                     " registers a thread, which it has at launch" +
                     (less || first.up ? ": no registers_up asks for more than " +
                                             std::to_string(largest_) + " (" + to_string(largest_by_) + ")"
                                       : ""),
                 less || first.up ? largest_by_ : Where{});
  }
}

void RegisterPool::change(int registers, bool up, Where where) {
  Cluster& cluster = *running.cluster;
  const unsigned warp = running.thread->warp;
  const unsigned group = warp / warps_of_group;
  if (warps_ < (group + 1) * warps_of_group)
    fail_misused(where, "a warpgroup is four warps, and this one has " +
                            std::to_string(warps_ - group * warps_of_group) + ": the block has " +
                            std::to_string(cluster.block_threads) + " threads");
  const std::size_t number = executed_[warp]++;
  const Change mine = {registers, up, where};
  if (changes_[group].size() == number) changes_[group].push_back(mine);
  require_same(warp, number, mine);
  if (cluster.launch->options->check) require_synchronised(warp, number, where);
  if (up && registers > largest_) {
    largest_ = registers;
    largest_by_ = where;
  }
  require_order();
  if (number > 0 && (up ? registers < owned_[warp] : registers > owned_[warp])) {
    const Where before = changes_[group][number - 1].where;
    fail_misused(where,
                 name_of(registers, up) + " is executed with " + std::to_string(owned_[warp]) +
                     " registers a thread (" + to_string(before) + ")",
                 before);
  }
  if (up) {
    wanted_[warp] = registers;
  } else {
    own(warp, registers);
  }
  for (unsigned w = 0; w < warps_; ++w) {
    if (wanted_[w] == 0 || (wanted_[w] - of(w)) * static_cast<int>(warp_size) > free(w)) continue;
    own(w, wanted_[w]);
    wanted_[w] = 0;
    wake(w, waiters_[w]);
    waiters_[w] = 0;
  }
}

bool RegisterPool::waits(unsigned warp, unsigned lane) {
  if (wanted_[warp] == 0) return false;
  waiters_[warp] |= 1u << lane;
  return true;
}

void RegisterPool::retire(unsigned warp) const {
  const auto& all = changes_[warp / warps_of_group];
  if (executed_[warp] >= all.size()) return;
  const Change& next = all[executed_[warp]];
  fail_misused(next.where, warp_name(warp) + " of this warpgroup has returned from the kernel without " +
                               name_of(next.registers, next.up));
}

void RegisterPool::report_shortage() const {
  for (unsigned w = 0; w < warps_; ++w) {
    if (wanted_[w] == 0) continue;
    const Thread& first = *running.cluster->thread[w * warp_size];
    fail_in(first, ErrorKind::deadlock, first.where, "",
            warp_name(w) + " asks for " +
                std::to_string((wanted_[w] - of(w)) * static_cast<int>(warp_size)) + " registers, " +
                std::to_string(wanted_[w]) + " for each thread, which has " + std::to_string(of(w)) +
                ", and in the block's pool are " + std::to_string(free(w)) + ". At launch each of " +
                std::to_string(warps_of_block_ * warp_size) + " threads has " +
                std::to_string(at_launch()) + ":" + where_all_are());
  }
}

}  // namespace flashladder::simt
