// What cp.async does, on the emulator: nothing arrives before it is waited for.
#include "common/ptx/cp_async.hpp"

#include <algorithm>
#include <cstring>

namespace flashladder::simt {

void issue_copy(SharedArray* array, std::byte* to, GlobalBuffer* buffer, std::int64_t byte, int bytes,
                bool valid, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  ++running.counts.async_copies;
  count_copying_thread();
  array->traffic.written_bytes += bytes;
  if (valid) running.global[buffer->slot].read_bytes += bytes;
  const auto offset = static_cast<std::uint32_t>(to - cluster.shared.base()),
             size = static_cast<std::uint32_t>(bytes);
  if (running.observed) {
    if (valid) observe_global(*buffer, byte, bytes, GlobalMarks::Use::read, where.file, where.line);
    observe_shared(*array, to, bytes, true, where.file, where.line);
    if (cluster.launch->options->check) cluster.races.begin_copy(offset, size, array->granule);
  }
  std::memset(to, 0xff, size);
  const std::uint32_t read_bytes = valid ? size : 0;
  me.copies.push_back({array, offset, size, read_bytes, valid ? buffer->data + byte : nullptr, where});
  me.block->flight.begin_copy(read_bytes);
}

void commit_copies() {
  Thread& me = *running.thread;
  note(Step::Kind::copy_commit);
  std::size_t grouped = 0;
  for (const std::size_t group : me.copy_groups) grouped += group;
  me.copy_groups.push_back(me.copies.size() - grouped);
}

void wait_for_copies(std::size_t pending) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  note(Step::Kind::copy_wait, pending);
  if (me.copy_groups.size() <= pending) return;
  const auto groups_done = static_cast<std::ptrdiff_t>(me.copy_groups.size() - pending);
  std::size_t done = 0;
  for (std::ptrdiff_t g = 0; g < groups_done; ++g) done += me.copy_groups[static_cast<std::size_t>(g)];
  for (std::size_t i = 0; i < done; ++i) {
    const PendingCopy& copy = me.copies[i];
    std::byte* to = cluster.shared.base() + copy.offset;
    std::memset(to, 0, copy.bytes);
    if (copy.read_bytes != 0) std::memcpy(to, copy.source, copy.read_bytes);
    me.block->flight.end_copy(copy.read_bytes);
    if (!cluster.launch->options->check) continue;
    if (const auto conflict = cluster.races.end_copy(me.warp, me.lane, copy.offset, copy.bytes,
                                                     copy.array->granule, copy.where))
      report_conflict(*conflict, *copy.array, copy.offset, true, copy.where);
  }
  me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<std::ptrdiff_t>(done));
  me.copy_groups.erase(me.copy_groups.begin(), me.copy_groups.begin() + groups_done);
}

}  // namespace flashladder::simt
