#include "common/simt/races.hpp"

#include <algorithm>
#include <bit>

namespace flashladder::simt {

void SharedRaces::begin(unsigned warps) {
  if (warps != warps_) {
    warps_ = warps;
    const std::size_t granules = writes_.size();
    reads_.assign(granules * warps, {});
  }
  // Steps go on from where the block before stopped, so that its marks need not be wiped out.
  std::uint32_t last = std::max(first_step_, last_phase_);
  for (const Clock& clock : clocks_) last = std::max(last, *std::max_element(clock.begin(), clock.end()));
  if (last > 0xf0000000u) {
    last = 0;
    std::fill(writes_.begin(), writes_.end(), Write{});
    std::fill(reads_.begin(), reads_.end(), Read{});
  }
  first_step_ = last + 1;
  for (Clock& clock : clocks_) clock.fill(first_step_ - 1);
  for (unsigned w = 0; w < warps; ++w) clocks_[w][w] = epochs_[w] = first_step_;
  last_phase_ = 0;
  for (unsigned t = 0; t < warps * 32; ++t) fences_[t].clear();
  pending_reads_.clear();
  for (unsigned g = 0; g < warpgroups_; ++g) {
    std::ranges::fill(wgmma_reads_[g].last, 0u);
    wgmma_reads_[g].places.clear();
  }
  warpgroups_ = 0;
  for (unsigned w = 0; w < warps; ++w) wgmma_waits_[w].clear();
}

SharedRaces::Place SharedRaces::pack(Where where) {
  if (last_file_ >= files_.size() || files_[last_file_] != where.file) {
    last_file_ = static_cast<std::size_t>(std::ranges::find(files_, where.file) - files_.begin());
    if (last_file_ == files_.size()) files_.push_back(where.file);
  }
  return static_cast<Place>(last_file_ << 20 | where.line);
}

Where SharedRaces::unpack(Place place) const {
  return Where::here(files_[place >> 20], place & 0xfffff);
}

void SharedRaces::reserve(std::uint32_t bytes) {
  const std::size_t granules = (bytes + 1) / 2;
  if (granules <= writes_.size()) return;
  writes_.resize(granules);
  reads_.resize(granules * warps_);
}

std::optional<Conflict> SharedRaces::access(unsigned warp, unsigned lane, std::uint32_t byte,
                                            std::uint32_t bytes, std::uint32_t granule, bool write,
                                            Where where) {
  const Clock& clock = clocks_[warp];
  const std::uint32_t now = clock[warp];
  const Place place = pack(where);
  const auto race = [&](unsigned other) {
    return other == warp ? ErrorKind::race_within_warp : ErrorKind::race_shared;
  };
  std::optional<Conflict> found;
  if (write && !pending_reads_.empty()) {
    if (auto conflict = pending_read(byte, bytes)) return conflict;
  }
  if (write && warpgroups_ != 0) {
    if (auto conflict = unordered_wgmma(byte, bytes, warp)) return conflict;
  }
  for (std::uint32_t i = byte / 2; i < (byte + bytes) / 2; i += granule / 2) {
    Write& last = writes_[i];
    if (last.step < first_step_) {
      if (!write) found = Conflict{ErrorKind::uninitialised_shared, false, 0, 0, 0, {}};
    } else if (last.warp >= 32) {  // by a unit
      if (last.step > clock[last.warp])
        return Conflict{ErrorKind::race_with_unit, true, last.teller, last.lane, 0,
                        unpack(last.place),        true};
    } else {
      if (last.warp != warp ? last.step > clock[last.warp]
                            : last.step >= epochs_[warp] && last.lane != lane)
        return Conflict{race(last.warp), true, last.warp, last.lane, 0, unpack(last.place)};
      if (last.copying)
        found = Conflict{ErrorKind::missing_wait, true, last.warp, last.lane, 0, unpack(last.place)};
    }
    Read* reads = &reads_[static_cast<std::size_t>(i) * warps_];
    if (write) {
      if (auto conflict = unordered_read(i, warp, lane)) return conflict;
      last = {place, now, static_cast<std::uint8_t>(warp), static_cast<std::uint8_t>(lane)};
    } else {
      note_read(reads[warp], place, warp, lane);
    }
  }
  if (!found)
    return std::nullopt;  // nearly always; copying an empty Conflict would cost more than all else
  return found;
}

void SharedRaces::note_read(Read& mine, Place place, unsigned warp, unsigned lane) {
  if (mine.step < epochs_[warp]) mine.lanes = 0;
  if (mine.step != clocks_[warp][warp]) mine = {place, clocks_[warp][warp], mine.lanes};
  mine.lanes |= 1u << lane;
}

std::optional<Conflict> SharedRaces::unordered_read(std::uint32_t granule, unsigned warp,
                                                    unsigned lane) const {
  const Clock& clock = clocks_[warp];
  const Read* reads = &reads_[static_cast<std::size_t>(granule) * warps_];
  for (unsigned w = 0; w < warps_; ++w) {
    const std::uint32_t others = w == warp ? reads[w].lanes & ~(1u << lane) : reads[w].lanes;
    if (others != 0 && (w == warp ? reads[w].step >= epochs_[w] : reads[w].step > clock[w]))
      return Conflict{w == warp ? ErrorKind::race_within_warp : ErrorKind::race_shared,
                      false,
                      w,
                      static_cast<unsigned>(std::countr_zero(others)),
                      0,
                      unpack(reads[w].place)};
  }
  return std::nullopt;
}

void SharedRaces::begin_copy(std::uint32_t byte, std::uint32_t bytes, std::uint32_t granule) {
  for (std::uint32_t i = byte / 2; i < (byte + bytes) / 2; i += granule / 2) writes_[i].copying = true;
}

std::optional<Conflict> SharedRaces::end_copy(unsigned warp, unsigned lane, std::uint32_t byte,
                                              std::uint32_t bytes, std::uint32_t granule, Where where) {
  const Place place = pack(where);
  for (std::uint32_t i = byte / 2; i < (byte + bytes) / 2; i += granule / 2) {
    if (auto conflict = unordered_read(i, warp, lane)) return conflict;
    writes_[i] = {place, clocks_[warp][warp], static_cast<std::uint8_t>(warp),
                  static_cast<std::uint8_t>(lane)};
  }
  return std::nullopt;
}

std::optional<Conflict> SharedRaces::unordered_write(const Write& last, unsigned warp,
                                                     unsigned lane) const {
  if (last.step < first_step_) return std::nullopt;
  if (last.warp == warp && last.step >= epochs_[warp] && last.lane != lane)
    return Conflict{ErrorKind::race_with_unit, true, last.warp, last.lane, 0, unpack(last.place)};
  return unordered_write(last, clocks_[warp]);
}

std::optional<Conflict> SharedRaces::unordered_write(const Write& last, const Clock& clock) const {
  const bool by_unit = last.warp >= 32;
  const auto conflict = [&](ErrorKind kind) {
    return Conflict{kind,   true, by_unit ? last.teller : last.warp, last.lane, 0, unpack(last.place),
                    by_unit};
  };
  if (last.step > clock[last.warp]) return conflict(ErrorKind::race_with_unit);
  if (by_unit) return std::nullopt;
  if (last.copying) return conflict(ErrorKind::missing_wait);
  const std::vector<std::uint32_t>& fences = fences_[last.warp * 32u + last.lane];
  const auto fence = std::ranges::lower_bound(fences, last.step);
  if (fence == fences.end() || *fence > clock[last.warp]) return conflict(ErrorKind::missing_proxy_fence);
  return std::nullopt;
}

void SharedRaces::join_knowledge(Clock& known, unsigned warp, bool first) const {
  const Clock& clock = clocks_[warp];
  if (first) known = clock;
  for (unsigned i = 0; i < known.size(); ++i) known[i] = std::min(known[i], clock[i]);
}

std::optional<Conflict> SharedRaces::read_by_wgmma(unsigned warpgroup, std::size_t number,
                                                   const Clock& known, std::uint32_t byte,
                                                   std::uint32_t granule, std::uint32_t swizzle,
                                                   Where where) {
  WgmmaReads& reads = wgmma_reads_[warpgroup];
  warpgroups_ = std::max(warpgroups_, warpgroup + 1);
  if (reads.last.size() < writes_.size() / 8) reads.last.resize(writes_.size() / 8);
  if (reads.places.size() <= number) reads.places.resize(number + 1, pack(where));
  const std::uint32_t chunk = byte / 16;
  reads.last[chunk] = static_cast<std::uint32_t>(number + 1);
  for (std::uint32_t i = byte / 2; i < byte / 2 + 8; i += granule / 2) {
    const Write& last = writes_[i];
    if (last.step < first_step_) return Conflict{ErrorKind::uninitialised_shared, false, 0, 0, 0, {}};
    if (auto conflict = unordered_write(last, known)) return conflict;
  }
  const Write& last = writes_[byte / 2];
  if (last.warp >= 32 && swizzles_[chunk] != swizzle)
    return Conflict{
        ErrorKind::bad_matrix_descriptor, true, last.teller, last.lane, 0, unpack(last.place), true};
  return std::nullopt;
}

void SharedRaces::wait_for_wgmmas(unsigned warp, std::size_t count) {
  auto& waits = wgmma_waits_[warp];
  if (waits.empty() || waits.back().first < count) waits.emplace_back(count, clocks_[warp][warp]);
}

std::optional<Conflict> SharedRaces::unordered_wgmma(std::uint32_t byte, std::uint32_t bytes,
                                                     unsigned warp) const {
  for (unsigned g = 0; g < warpgroups_; ++g) {
    const WgmmaReads& reads = wgmma_reads_[g];
    for (std::uint32_t chunk = byte / 16; chunk * 16 < byte + bytes && chunk < reads.last.size(); ++chunk) {
      const std::uint32_t wgmmas = reads.last[chunk];
      if (wgmmas == 0) continue;
      for (unsigned w = 4 * g; w < 4 * g + 4; ++w) {
        const auto wait = std::ranges::lower_bound(wgmma_waits_[w], std::size_t{wgmmas}, {},
                                                   &std::pair<std::size_t, std::uint32_t>::first);
        if (wait != wgmma_waits_[w].end() && wait->second <= clocks_[warp][w]) continue;
        return Conflict{ErrorKind::race_with_unit, false, w, 0, 0, unpack(reads.places[wgmmas - 1]), true};
      }
    }
  }
  return std::nullopt;
}

std::optional<Conflict> SharedRaces::pending_read(std::uint32_t byte, std::uint32_t bytes) const {
  for (const PendingRead& read : pending_reads_)
    if (read.begin < byte + bytes && byte < read.end)
      return Conflict{ErrorKind::race_with_unit, false, read.warp, read.lane, 0, read.where, true};
  return std::nullopt;
}

std::optional<Conflict> SharedRaces::write_by_unit(unsigned mbarrier, std::uint64_t phase, unsigned warp,
                                                   unsigned lane, std::uint32_t byte, std::uint32_t bytes,
                                                   std::uint32_t granule, std::uint32_t swizzle,
                                                   Where where) {
  const Place place = pack(where);
  last_phase_ = std::max(last_phase_, step_of(phase));
  if (auto conflict = pending_read(byte, bytes)) return conflict;
  if (warpgroups_ != 0) {
    if (auto conflict = unordered_wgmma(byte, bytes, warp)) return conflict;
  }
  if (swizzles_.size() < writes_.size() / 8) swizzles_.resize(writes_.size() / 8);
  for (std::uint32_t chunk = byte / 16; chunk * 16 < byte + bytes; ++chunk) {
    swizzles_[chunk] = static_cast<std::uint8_t>(swizzle);
  }
  for (std::uint32_t i = byte / 2; i < (byte + bytes) / 2; i += granule / 2) {
    if (auto conflict = unordered_write(writes_[i], warp, lane)) return conflict;
    if (auto conflict = unordered_read(i, warp, lane)) {
      conflict->kind = ErrorKind::race_with_unit;
      return conflict;
    }
    writes_[i] = {place, step_of(phase), static_cast<std::uint8_t>(32 + mbarrier),
                  static_cast<std::uint8_t>(lane), static_cast<std::uint8_t>(warp)};
  }
  return std::nullopt;
}

void SharedRaces::end_phase(Clock& ended, unsigned mbarrier, std::uint64_t phase) {
  last_phase_ = std::max(last_phase_, step_of(phase));
  ended[32 + mbarrier] = step_of(phase);
}

std::optional<Conflict> SharedRaces::read_by_unit(unsigned warp, unsigned lane, std::uint32_t byte,
                                                  std::uint32_t bytes, std::uint32_t granule, Where where) {
  // Also where it is wrong: an error of a read of what nobody wrote may be told later, or as a race.
  pending_reads_.push_back({byte, byte + bytes, granule, static_cast<std::uint8_t>(warp),
                            static_cast<std::uint8_t>(lane), where});
  for (std::uint32_t i = byte / 2; i < (byte + bytes) / 2; i += granule / 2) {
    if (writes_[i].step < first_step_) return Conflict{ErrorKind::uninitialised_shared, false, 0, 0, 0, {}};
    if (auto conflict = unordered_write(writes_[i], warp, lane)) return conflict;
  }
  return std::nullopt;
}

void SharedRaces::end_reads(unsigned warp, unsigned lane, std::size_t pending) {
  const auto is_mine = [&](const PendingRead& read) { return read.warp == warp && read.lane == lane; };
  auto left = static_cast<std::size_t>(std::ranges::count_if(pending_reads_, is_mine));
  std::erase_if(pending_reads_, [&](const PendingRead& read) {
    if (!is_mine(read) || left <= pending) return false;
    --left;
    // From here on it is a read of this lane.
    for (std::uint32_t i = read.begin / 2; i < read.end / 2; i += read.granule / 2) {
      note_read(reads_[static_cast<std::size_t>(i) * warps_ + warp], pack(read.where), warp, lane);
    }
    return true;
  });
}

void SharedRaces::arrive(Clock& barrier, unsigned warp) const {
  for (unsigned w = 0; w < warps_; ++w) barrier[w] = std::max(barrier[w], clocks_[warp][w]);
  for (unsigned m = 32; m < barrier.size(); ++m) barrier[m] = std::max(barrier[m], clocks_[warp][m]);
}

void SharedRaces::leave(const Clock& barrier, unsigned warp, bool waited) {
  if (waited) acquire(barrier, warp);
  synchronise(warp);
}

void SharedRaces::acquire(const Clock& from, unsigned warp) {
  for (unsigned w = 0; w < warps_; ++w) clocks_[warp][w] = std::max(clocks_[warp][w], from[w]);
  for (unsigned m = 32; m < from.size(); ++m) clocks_[warp][m] = std::max(clocks_[warp][m], from[m]);
}

namespace {

constexpr std::uint64_t atomic_bit = 1ull << 31;
constexpr std::uint32_t several = 0x7fffffff;  ///< Instead of a block number.

std::uint64_t mark_of(std::uint32_t launch, std::uint32_t block, bool atomic) {
  return std::uint64_t{launch} << 32 | (atomic ? atomic_bit : 0) | block;
}
std::uint32_t launch_of(std::uint64_t mark) {
  return static_cast<std::uint32_t>(mark >> 32);
}
std::uint32_t block_of(std::uint64_t mark) {
  return static_cast<std::uint32_t>(mark) & several;
}

/// Adds a block to a mark: the block itself, or `several` when another one is there from the same launch.
std::uint64_t join(std::atomic<std::uint64_t>& mark, std::uint32_t launch, std::uint32_t block,
                   bool atomic) {
  std::uint64_t old = mark.load();
  for (;;) {
    const bool shared = launch_of(old) == launch && block_of(old) != block;
    const bool plain_before = launch_of(old) == launch && (old & atomic_bit) == 0;
    const std::uint64_t now =
        mark_of(launch, shared ? several : block, atomic && !(old != 0 && plain_before));
    if (mark.compare_exchange_weak(old, now)) return old;
  }
}

}  // namespace

GlobalMarks::GlobalMarks(std::int64_t elements)
    : size_(static_cast<std::size_t>(elements)), marks_(new Mark[size_]) {}

void GlobalMarks::clear() {
  for (std::size_t i = 0; i < size_; ++i) marks_[i].writer = marks_[i].reader = 0;
}

std::optional<Conflict> GlobalMarks::access(std::int64_t i, Use use, std::uint32_t launch,
                                            std::uint32_t unfinished, std::uint32_t block, bool initialised,
                                            Where where) {
  Mark& mark = marks_[static_cast<std::size_t>(i)];
  const auto by_another = [&](std::uint64_t old) {
    const std::uint32_t of = launch_of(old);
    return of == launch ? block_of(old) != block : of >= unfinished && of < launch;
  };
  const auto race = [&](std::uint64_t old, bool wrote) {
    const char* file = mark.file;
    return Conflict{launch_of(old) == launch ? ErrorKind::race_global : ErrorKind::missing_grid_wait,
                    wrote,
                    0,
                    0,
                    block_of(old),
                    Where::here(file != nullptr ? file : "", mark.line)};
  };
  if (use == Use::read) {
    const std::uint64_t reader_before = join(mark.reader, launch, block, false);
    const std::uint64_t writer = mark.writer;
    if (by_another(writer)) return race(writer, true);
    if (writer == 0 && !initialised) return Conflict{ErrorKind::uninitialised_global, false, 0, 0, 0, {}};
    if (launch_of(reader_before) == launch) return std::nullopt;  // keep the place of the first use
  } else {
    const bool atomic = use == Use::atomic;
    const std::uint64_t before = join(mark.writer, launch, block, atomic);
    const bool both_atomic = atomic && (before & atomic_bit) != 0;
    if (by_another(before) && !both_atomic) return race(before, true);
    const std::uint64_t reader = mark.reader;
    if (by_another(reader)) return race(reader, false);
    if (atomic && before == 0 && !initialised)
      return Conflict{ErrorKind::uninitialised_global, false, 0, 0, 0, {}};
  }
  mark.file = where.file;
  mark.line = where.line;
  return std::nullopt;
}

}  // namespace flashladder::simt
