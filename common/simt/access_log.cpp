#include "common/simt/access_log.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace flashladder::simt {
namespace {

void charge(std::span<const Access* const> lanes) {
  const Access& first = *lanes.front();
  if (is_shared(first.kind)) {
    auto& traffic = *static_cast<SharedTraffic*>(first.traffic);
    const Cost cost = shared_cost(lanes);
    traffic.wavefronts += cost.actual;
    traffic.ideal_wavefronts += cost.ideal;
  } else {
    auto& traffic = *static_cast<GlobalTraffic*>(first.traffic);
    const Cost cost = global_cost(lanes);
    traffic.sectors += cost.actual;
    if (first.kind == AccessKind::global_atomic) traffic.atomic_sectors += cost.actual;
    traffic.ideal_sectors += cost.ideal;
    if (first.kind == AccessKind::global_load) traffic.distinct_read_bytes += cost.bytes;
    if (first.kind == AccessKind::global_store) traffic.distinct_written_bytes += cost.bytes;
  }
}

/// What makes accesses of different lanes the same instruction.
auto instruction(const Access& a) {
  return std::tuple(a.line, a.kind, a.bytes, a.traffic);
}

/// How many values of a short list are distinct. Sorts it.
template <class T>
std::size_t count_distinct(T* begin, T* end) {
  std::sort(begin, end);
  return static_cast<std::size_t>(std::unique(begin, end) - begin);
}

}  // namespace

Cost shared_cost(std::span<const Access* const> lanes) {
  const unsigned bytes = lanes.front()->bytes;
  const unsigned lanes_at_once = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  const unsigned words_per_lane = std::max(bytes / 4, 1u);
  Cost cost = {0, 0, 0};
  for (std::size_t i = 0; i < lanes.size();) {
    const unsigned group = lanes[i]->lane / lanes_at_once;
    std::array<std::uint32_t, 32> words;  // at most 32 lanes of 1 word, 16 of 2, or 8 of 4
    std::size_t n = 0;
    for (; i < lanes.size() && lanes[i]->lane / lanes_at_once == group; ++i)
      for (unsigned k = 0; k < words_per_lane; ++k)
        words[n++] = static_cast<std::uint32_t>(lanes[i]->address / 4) + k;
    // Neighbouring lanes mostly touch neighbouring words or the same one: then nothing needs sorting.
    if (!std::is_sorted(words.begin(), words.begin() + n)) std::sort(words.begin(), words.begin() + n);
    n = static_cast<std::size_t>(std::unique(words.begin(), words.begin() + n) - words.begin());
    std::array<std::uint8_t, 32> in_bank = {};
    std::uint8_t most = 0;
    for (std::size_t k = 0; k < n; ++k) most = std::max(most, ++in_bank[words[k] % 32]);
    cost.actual += most;
    cost.ideal += 1;
    cost.bytes += n * std::min(bytes, 4u);
  }
  return cost;
}

Cost global_cost(std::span<const Access* const> lanes) {
  std::array<std::uint64_t, 32> addresses;
  std::size_t n = 0;
  for (const Access* lane : lanes) addresses[n++] = lane->address;
  n = count_distinct(addresses.data(), addresses.data() + n);
  const std::uint64_t bytes = lanes.front()->bytes;
  std::uint64_t sectors = 0;
  std::uint64_t last = ~std::uint64_t{0};
  for (std::size_t i = 0; i < n; ++i) {  // an access is aligned to its size: it lies in one sector
    const std::uint64_t sector = addresses[i] / 32;
    if (sector != last) ++sectors;
    last = sector;
  }
  return {sectors, (n * bytes + 31) / 32, n * bytes};
}

void WarpLog::flush(std::uint32_t lanes) {
  if (lanes == 0) return;
  const auto& first = lanes_[static_cast<std::size_t>(std::countr_zero(lanes))];
  bool in_step = true;
  for (std::uint32_t rest = lanes; rest != 0 && in_step; rest &= rest - 1) {
    const auto& lane = lanes_[static_cast<std::size_t>(std::countr_zero(rest))];
    in_step = std::equal(lane.begin(), lane.end(), first.begin(), first.end(),
                         [](const Access& a, const Access& b) { return instruction(a) == instruction(b); });
  }
  if (in_step) {
    std::array<const Access*, 32> group;
    for (std::size_t i = 0; i < first.size(); ++i) {
      std::size_t n = 0;
      for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
        group[n++] = &lanes_[static_cast<std::size_t>(std::countr_zero(rest))][i];
      charge({group.data(), n});
    }
  } else {
    std::map<std::tuple<decltype(instruction(first.front())), unsigned>, std::vector<const Access*>> groups;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      std::map<decltype(instruction(first.front())), unsigned> times;
      for (const Access& access : lanes_[static_cast<std::size_t>(std::countr_zero(rest))])
        groups[{instruction(access), times[instruction(access)]++}].push_back(&access);
    }
    for (const auto& [key, group] : groups) charge(group);
  }
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
    lanes_[static_cast<std::size_t>(std::countr_zero(rest))].clear();
}

void WarpLog::clear() {
  for (auto& lane : lanes_) lane.clear();
}

}  // namespace flashladder::simt
