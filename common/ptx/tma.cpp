// What TMA does, on the emulator.
#include "common/ptx/tma.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>

namespace flashladder::simt {
namespace {

constexpr std::int64_t alignment = 128;  // of a box in shared memory
constexpr int most_bytes = (1 << 20) - 1;

/// Calls `body(inside, global_byte, shared_byte)` for each element of a box, `shared_byte` as the swizzle
/// puts it: chunks of 16 bytes change places by the address in shared memory.
template <class Body>
void for_each_element(const TensorMap& map, const int (&at)[4], std::uint32_t to, Body body) {
  std::uint32_t byte = to;
  const std::uint32_t bits = map.swizzle == 0 ? 0 : static_cast<std::uint32_t>(map.swizzle / 16 - 1);
  for (std::int64_t i3 = 0; i3 < map.box[3]; ++i3) {
    for (std::int64_t i2 = 0; i2 < map.box[2]; ++i2) {
      for (std::int64_t i1 = 0; i1 < map.box[1]; ++i1) {
        for (std::int64_t i0 = 0; i0 < map.box[0]; ++i0) {
          const std::int64_t i[4] = {at[0] + i0, at[1] + i1, at[2] + i2, at[3] + i3};
          bool inside = true;
          std::int64_t global = map.offset;
          for (int k = 0; k < 4; ++k) {
            inside = inside && i[k] >= 0 && i[k] < map.dims[k];
            global += i[k] * map.strides[k];
          }
          body(inside, global, byte ^ (byte >> 7 & bits) << 4);
          byte += static_cast<std::uint32_t>(map.element_bytes);
        }
      }
    }
  }
}

void require_box(const TensorMap& map, const SharedArray& array, std::uint32_t offset, std::int64_t bytes,
                 const char* word, Where where) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorKind::bad_tensor_copy, where, array.name, std::string(word) + ": " + what);
  };
  if (map.buffer == nullptr) bad("the tensor map was not made by make_tensor_map");
  if (array.column != 0) bad("the tile is a declared array, which may begin at any multiple of 16 bytes");
  if (running.cluster->shared.has_declared())
    bad("declared arrays lie before dynamic shared memory, which then begins at any multiple of 16 bytes");
  if (offset % alignment != 0)
    bad("the box begins " + std::to_string(offset % alignment) + " bytes behind a multiple of 128");
  if (bytes < map.box_bytes())
    bad("a box has " + std::to_string(map.box_bytes()) + " bytes, and " + array.name + " has " +
        std::to_string(bytes) + " from there on");
}

/// Counts and checks what a copy does in global memory.
std::int64_t use_global(const TensorMap& map, const int (&at)[4], std::uint32_t to, GlobalMarks::Use use,
                        Where where) {
  std::int64_t bytes = 0;
  for_each_element(map, at, to, [&](bool inside, std::int64_t global, std::uint32_t) {
    if (!inside) return;
    bytes += map.element_bytes;
    if (running.trace != nullptr) running.trace->touch(map.buffer->slot, use, global, map.element_bytes);
    if (running.cluster->launch->options->check)
      check_global(*map.buffer, global / map.element_bytes, use, where);
  });
  return bytes;
}

/// Counts and checks what a unit reads of shared memory for a thread, in one of the thread's groups.
void begin_read(SharedArray* array, std::uint32_t offset, std::int64_t bytes, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  if (cluster.launch->options->check) {
    if (const auto conflict = cluster.races.read_by_unit(
            me.warp, me.lane, offset, static_cast<std::uint32_t>(bytes), array->granule, where))
      report_conflict(*conflict, *array, offset, false, where, true);
  }
  array->traffic.read_bytes += static_cast<std::uint64_t>(bytes);
  ++me.stores;
  me.stored_by = where;
}

}  // namespace

void expect_at_mbarrier(SharedArray* array, std::byte* at, int bytes, Where where) {
  Mbarrier& bar = find_mbarrier(array, at, "mbarrier_arrive_expect_tx", where);
  if (bytes < 0 || bytes > most_bytes) {
    fail(ErrorKind::wrong_expected_bytes, where, array->name,
         name_of(bar) + " is told of " + std::to_string(bytes) + " bytes; 0 to 1048575 are possible");
  }
  bar.expected += bytes;
  bar.bytes += bytes;
  arrive_at_mbarrier(array, at, where);
}

void fence_proxy() {
  const Thread& me = *running.thread;
  fence_mbarriers();  // which threads write, too
  if (running.cluster->launch->options->check) running.cluster->races.fence_proxy(me.warp, me.lane);
}

void begin_bytes(Mbarrier& bar, std::int64_t bytes, Where where) {
  require_fenced(bar, "the unit that copies", where);
  const Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  if (cluster.launch->options->check && cluster.shared.rank_of(bar.offset) != me.block->rank &&
      bar.phase > 0 && !cluster.races.knows_phase(me.warp, bar.number, bar.phase - 1)) {
    fail(ErrorKind::mbarrier_misuse, where, bar.array->name,
         "bytes are to come in phase " + std::to_string(bar.phase) + " of " + name_of(bar) +
             " of another block, and this thread cannot know that the phase before has ended");
  }
  bar.begun += bytes;
  bar.copied = bar.phase + 1;
  bar.copied_by = where;
  // What another block brings may come before this one is told of it: then the phase's last arrival counts.
  if (cluster.block.size() == 1 || bar.pending == 0) require_announced(bar);
}

void end_bytes(Mbarrier& bar, std::int64_t bytes) {
  bar.bytes -= bytes;
  end_phase_if_complete(bar);
}

void write_by_unit(const Mbarrier& bar, SharedArray& array, std::uint32_t offset, std::int64_t bytes,
                   std::int64_t swizzle, Where where) {
  Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  array.traffic.written_bytes += static_cast<std::uint64_t>(bytes);
  if (cluster.launch->options->check) {
    if (const auto conflict = cluster.races.write_by_unit(bar.number, bar.phase, me.warp, me.lane, offset,
                                                          static_cast<std::uint32_t>(bytes), array.granule,
                                                          static_cast<std::uint32_t>(swizzle), where))
      report_conflict(*conflict, array, offset, true, where, true);
  }
  std::memset(cluster.shared.base() + offset, 0xff, static_cast<std::size_t>(bytes));
}

void load_box(unsigned first_rank, unsigned ranks, SharedArray* array, std::byte* to, std::int64_t bytes,
              const TensorMap& map, SharedArray* bar_array, std::byte* bar_at, const int (&at)[4],
              Where where) {
  Cluster& cluster = *running.cluster;
  SharedMemory& shared = cluster.shared;
  const std::uint32_t offset = shared.offset_of(to), bar_offset = shared.offset_of(bar_at);
  require_box(map, *array, offset, bytes, "tma_load", where);
  ++running.counts.tma_loads;
  count_copying_thread();
  const auto read = static_cast<std::uint64_t>(use_global(map, at, offset, GlobalMarks::Use::read, where));
  running.counts.tma_read_bytes += read;
  running.global[map.buffer->slot].read_bytes += read;
  for (unsigned rank = first_rank; rank < first_rank + ranks; ++rank) {
    Block& block = cluster.block[rank];
    require_running(block, where);
    const std::uint32_t moved = (rank - shared.rank_of(offset)) * shared.stride(), there = offset + moved;
    Mbarrier& bar =
        find_mbarrier(shared.of_block(rank, *bar_array),
                      shared.base() + static_cast<std::uint32_t>(bar_offset + moved), "tma_load", where);
    begin_bytes(bar, map.box_bytes(), where);
    write_by_unit(bar, *shared.of_block(rank, *array), there, map.box_bytes(), map.swizzle, where);
    block.flight.begin_load(bar.number, bar.phase, read);
    note(Step::Kind::load, bar.number, bar.phase, static_cast<std::uint64_t>(map.box_bytes()), where);
    std::byte* const base = shared.base();
    cluster.units.add([map, at0 = at[0], at1 = at[1], at2 = at[2], at3 = at[3], there, base, &bar] {
      for_each_element(map, {at0, at1, at2, at3}, there,
                       [&](bool inside, std::int64_t global, std::uint32_t place) {
                         const auto size = static_cast<std::size_t>(map.element_bytes);
                         if (inside) {
                           std::memcpy(base + place, map.buffer->data + global, size);
                         } else {
                           std::memset(base + place, 0, size);
                         }
                       });
      end_bytes(bar, map.box_bytes());
    });
  }
}

void store_box(const TensorMap& map, SharedArray* array, const std::byte* from, std::int64_t bytes,
               const int (&at)[4], Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  const std::uint32_t offset = cluster.shared.offset_of(from);
  require_box(map, *array, offset, bytes, "tma_store", where);
  begin_read(array, offset, map.box_bytes(), where);
  ++running.counts.tma_stores;
  const auto written =
      static_cast<std::uint64_t>(use_global(map, at, offset, GlobalMarks::Use::write, where));
  running.counts.tma_written_bytes += written;
  running.global[map.buffer->slot].written_bytes += written;
  const std::byte* const base = cluster.shared.base();
  cluster.units.add(
      [map, at0 = at[0], at1 = at[1], at2 = at[2], at3 = at[3], offset, base] {
        for_each_element(map, {at0, at1, at2, at3}, offset,
                         [&](bool inside, std::int64_t global, std::uint32_t shared) {
                           if (inside)
                             std::memcpy(map.buffer->data + global, base + shared,
                                         static_cast<std::size_t>(map.element_bytes));
                         });
      },
      me.linear + 1);
}

void reduce_bulk(gmem<f32> to, SharedArray* array, const std::byte* from, int bytes, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  if (bytes < 16 || bytes % 16 != 0) {
    fail(ErrorKind::bad_tensor_copy, where, array->name,
         "bulk_reduce_add of " + std::to_string(bytes) + " bytes: give a multiple of 16, from 16 on");
  }
  const int count = bytes / 4;
  const std::uint32_t offset = cluster.shared.offset_of(from);
  if (offset + static_cast<std::uint32_t>(bytes) > array->offset + array->bytes)
    fail_shared(*array, (offset - array->offset) / 4, count, 4, where.file, where.line);
  gmem<f32>::check<4>(to.buffer(), to.offset(), where);
  if (to.offset() + count > to.buffer()->elements)
    fail_global(to.buffer(), to.offset(), count, where.file, where.line);
  begin_read(array, offset, bytes, where);
  if (cluster.launch->options->check) {
    for (int i = 0; i < count; ++i)
      check_global(*to.buffer(), to.offset() + i, GlobalMarks::Use::atomic, where);
  }
  if (running.trace != nullptr)
    running.trace->touch(to.buffer()->slot, GlobalMarks::Use::atomic, 4 * to.offset(), bytes);
  ++running.counts.bulk_reduces;
  running.global[to.buffer()->slot].atomic_bytes += static_cast<std::uint64_t>(bytes);
  auto* const sums = reinterpret_cast<float*>(to.buffer()->data) + to.offset();
  cluster.units.add(
      [sums, from, count] {
        for (int i = 0; i < count; ++i) {
          float number;
          std::memcpy(&number, from + 4 * i, sizeof number);
          std::atomic_ref<float>(sums[i]).fetch_add(number);
        }
      },
      me.linear + 1);
}

void commit_stores() {
  Thread& me = *running.thread;
  me.store_groups.push_back(me.stores);
  me.stores = 0;
}

void wait_for_store_reads(std::size_t pending) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  if (me.store_groups.size() <= pending) return;
  cluster.units.finish(me.linear + 1);
  const auto left = me.store_groups.end() - static_cast<std::ptrdiff_t>(pending);
  me.store_groups.erase(me.store_groups.begin(), left);
  const std::size_t stores = std::accumulate(me.store_groups.begin(), me.store_groups.end(), me.stores);
  if (cluster.launch->options->check) cluster.races.end_reads(me.warp, me.lane, stores);
}

}  // namespace flashladder::simt
