#include "common/simt/memory.hpp"

#include <algorithm>
#include <string>

namespace flashladder::simt {
namespace {

constexpr unsigned char poison_byte = 0xff;  // all ones is a NaN in every floating-point type
constexpr std::uint32_t array_alignment =
    128;  // all banks: bank conflicts do not depend on what comes before
constexpr std::uint32_t tile_alignment = 1024;  // the largest pattern of a swizzle

std::uint32_t round_up(std::uint32_t n, std::uint32_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Bytes that races are told apart by.
std::uint32_t granule_of(std::uint32_t element_bytes) {
  return element_bytes == 2 ? 2 : 4;
}

std::string number(std::int64_t n) {
  return std::to_string(n);
}

AccessKind access_kind(GlobalMarks::Use use) {
  switch (use) {
    case GlobalMarks::Use::read:
      return AccessKind::global_load;
    case GlobalMarks::Use::write:
      return AccessKind::global_store;
    case GlobalMarks::Use::atomic:
      break;
  }
  return AccessKind::global_atomic;
}

std::string thread_name(unsigned warp, unsigned lane) {
  const Cluster& cluster = *running.cluster;
  const Thread& thread = *cluster.thread[warp * warp_size + lane];
  return "thread " + to_string(thread.index) +
         (cluster.block.size() == 1 ? "" : " of block " + to_string(thread.block->index));
}

void count_access(const char* buffer, Where where) {
  if (++running.thread->accesses > running.cluster->launch->options->access_budget)
    fail(ErrorKind::endless_loop, where, buffer,
         "this thread made more than " + std::to_string(running.cluster->launch->options->access_budget) +
             " accesses without synchronising (Options::access_budget)");
}

/// Two uses at odds in words, the same whichever of them came first: reads before writes, then later lines.
[[noreturn]] void fail_race(const Conflict& conflict, bool write, Where where, const std::string& buffer,
                            const std::string& element, const std::string& me, const std::string& other) {
  const bool mine_first = write != conflict.earlier_wrote ? !write : where.line >= conflict.where.line;
  const std::string mine = me + (write ? " writes " : " reads ") + "it (" + to_string(where) + ")";
  const std::string theirs =
      other + (conflict.earlier_wrote ? " writes " : " reads ") + "it (" + to_string(conflict.where) + ")";
  fail(conflict.kind, mine_first ? where : conflict.where, buffer,
       element + ": " + (mine_first ? mine : theirs) + " and " + (mine_first ? theirs : mine) +
           ", and nothing decides which comes first",
       mine_first ? conflict.where : where);
}

}  // namespace

void report_conflict(const Conflict& conflict, const SharedArray& array, std::uint32_t byte, bool write,
                     Where where, bool by_unit) {
  Cluster& cluster = *running.cluster;
  const Thread& me = *running.thread;
  const std::string element = std::string(array.name) + (by_unit ? " from byte " : " byte ") +
                              number(byte - array.offset) + (by_unit ? " on" : "");
  const auto who = [](unsigned warp, unsigned lane, bool unit) {
    return unit ? "a unit, for " + thread_name(warp, lane) + "," : thread_name(warp, lane);
  };
  if (conflict.kind == ErrorKind::missing_proxy_fence) {
    fail(conflict.kind, where, array.name,
         element + ": " + thread_name(conflict.warp, conflict.lane) + " wrote there (" +
             to_string(conflict.where) +
             ") and executed no fence_proxy_async() behind it that who tells the unit (" +
             to_string(where) + ") can know of",
         conflict.where);
  }
  if (conflict.kind == ErrorKind::bad_matrix_descriptor) {
    fail(conflict.kind, where, array.name,
         element + ": TMA wrote it with another swizzle (" + to_string(conflict.where) +
             ") than it is described with",
         conflict.where);
  }
  if (conflict.kind != ErrorKind::uninitialised_shared && conflict.kind != ErrorKind::missing_wait)
    fail_race(conflict, write, where, array.name, element, who(me.warp, me.lane, by_unit),
              who(conflict.warp, conflict.lane, conflict.by_unit));
  const bool unwritten = conflict.kind == ErrorKind::uninitialised_shared;
  const std::string details = unwritten
                                  ? element + " is read, and no thread has written it"
                                  : element + (write ? " is written" : " is read") +
                                        ", but the copy that " + thread_name(conflict.warp, conflict.lane) +
                                        " issued at " + to_string(conflict.where) + " has not arrived";
  const KernelFault fault =
      fault_in(me, conflict.kind, where, array.name, details, unwritten ? array.where : conflict.where);
  if (!unwritten && (write || (conflict.warp == me.warp && conflict.lane == me.lane)))
    throw KernelError(fault);
  if (cluster.early_read) return;
  cluster.early_read = fault;
  cluster.early_reader = me.warp;
}

void SharedMemory::begin_launch(std::uint32_t dynamic_bytes, unsigned blocks) {
  arrays_.clear();
  blocks_ = blocks;
  dynamic_bytes_ = dynamic_bytes;
  static_bytes_ = 0;
  bytes_ = round_up(dynamic_bytes, 16);
  stride_ = blocks == 1 ? 0 : round_up(dynamic_bytes, tile_alignment);
  end_ = blocks == 1 ? round_up(dynamic_bytes, array_alignment) : blocks * stride_;
  const std::size_t size = std::max(end_, max_shared) + max_static_shared + 2 * tile_alignment;
  if (memory_.size() >= size) return;
  memory_.resize(size);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  base_ = memory_.data() + (tile_alignment - address % tile_alignment) % tile_alignment;
}

void SharedMemory::begin_cluster() {
  std::fill_n(base_, end_, std::byte{poison_byte});
}

SharedArray* SharedMemory::declare(const char* name, Where where, unsigned column, std::uint32_t bytes,
                                   std::uint32_t element_bytes) {
  for (SharedArray& array : arrays_)
    if (array.where.line == where.line && array.column == column && array.bytes == bytes &&
        std::strcmp(array.name, name) == 0 && std::strcmp(array.where.file, where.file) == 0)
      return &array;
  const std::uint32_t rounded = round_up(bytes, 16);
  if (blocks_ > 1 || static_bytes_ + rounded > max_static_shared || bytes_ + rounded > max_shared)
    return nullptr;
  static_bytes_ += rounded;
  bytes_ += rounded;
  SharedArray& array = add(name, where, column, end_, bytes, element_bytes);
  end_ = round_up(end_ + bytes, array_alignment);
  std::fill_n(array.data, bytes, std::byte{poison_byte});
  return &array;
}

SharedArray* SharedMemory::dynamic(unsigned rank, const char* name, Where where, std::uint32_t offset,
                                   std::uint32_t bytes, std::uint32_t element_bytes) {
  if (offset > dynamic_bytes_ || bytes > dynamic_bytes_ - offset) return nullptr;
  if (bytes == 0) bytes = dynamic_bytes_ - offset;
  offset += rank * stride_;
  for (SharedArray& array : arrays_)
    if (array.column == 0 && array.offset == offset && array.bytes == bytes &&
        array.granule == granule_of(element_bytes) && std::strcmp(array.name, name) == 0)
      return &array;
  return &add(name, where, 0, offset, bytes, element_bytes);
}

SharedArray* SharedMemory::of_block(unsigned rank, const SharedArray& array) {
  return dynamic(rank, array.name, array.where, array.offset - rank_of(array.offset) * stride_, array.bytes,
                 array.granule);
}

SharedArray& SharedMemory::add(const char* name, Where where, unsigned column, std::uint32_t offset,
                               std::uint32_t bytes, std::uint32_t element_bytes) {
  SharedArray array = {name, where, column, offset, bytes, granule_of(element_bytes), base_ + offset, {}};
  array.traffic.array_bytes = bytes;
  return arrays_.emplace_back(array);
}

SharedArray& declare_shared(const char* name, Where where, unsigned column, std::size_t bytes,
                            std::size_t element_bytes) {
  Cluster& cluster = *running.cluster;
  const std::uint32_t before = cluster.shared.end();
  const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, max_shared + 1));
  SharedArray* array =
      cluster.shared.declare(name, where, column, size, static_cast<std::uint32_t>(element_bytes));
  if (array == nullptr)
    fail(
        ErrorKind::too_much_shared, where, name,
        cluster.block.size() > 1
            ? "blocks of a cluster have dynamic shared memory only: on the emulator, they declare no arrays"
            : "the array's " + std::to_string(bytes) + " bytes do not fit beside the " +
                  std::to_string(cluster.shared.bytes()) + " bytes in use");
  if (cluster.launch->options->check && cluster.shared.end() != before)
    cluster.races.reserve(cluster.shared.end());
  return *array;
}

SharedArray& declare_dynamic(const char* name, Where where, std::size_t offset, std::size_t bytes,
                             std::size_t element_bytes) {
  Cluster& cluster = *running.cluster;
  const auto capped = [](std::size_t n) {
    return static_cast<std::uint32_t>(std::min<std::size_t>(n, max_shared + 1));
  };
  SharedArray* array = cluster.shared.dynamic(running.thread->block->rank, name, where, capped(offset),
                                              capped(bytes), static_cast<std::uint32_t>(element_bytes));
  const std::string what = (bytes == 0 ? "memory" : std::to_string(bytes) + " bytes") + " from byte " +
                           std::to_string(offset) + " of dynamic shared memory";
  if (array == nullptr)
    fail(ErrorKind::out_of_bounds_shared, where, name,
         what + ", of which the launch gave " + std::to_string(cluster.launch->shared_bytes) + " bytes");
  if (offset % (bytes == 0 ? element_bytes : 16) != 0)
    fail(ErrorKind::misaligned, where, name,
         what + (bytes == 0 ? "" : ": a tile must start at a multiple of 16"));
  return *array;
}

void fail_global(const GlobalBuffer* buffer, std::int64_t index, int count, const char* file,
                 unsigned line) {
  const Where where = Where::here(file, line);
  if (buffer == nullptr)
    fail(ErrorKind::out_of_bounds_global, where, "(null)", "the pointer points into no buffer");
  const std::string what = buffer->name() + " has " + number(buffer->elements) + " elements; ";
  const std::string which =
      count == 1 ? "element " + number(index) : number(count) + " elements from " + number(index) + " on";
  if (index < -(std::int64_t{1} << 20))
    fail(ErrorKind::offset_overflow, where, buffer->name(), what + "this access is to " + which);
  if (index < 0 || index + count > buffer->elements)
    fail(ErrorKind::out_of_bounds_global, where, buffer->name(), what + "this access is to " + which);
  fail(ErrorKind::misaligned, where, buffer->name(),
       which + ": an access of " + number(count) + " elements at once must start at a multiple of " +
           number(count));
}

void fail_shared(const SharedArray& array, std::int64_t index, int count, std::uint32_t element_bytes,
                 const char* file, unsigned line) {
  const Where where = Where::here(file, line);
  const std::int64_t elements = array.bytes / element_bytes;
  const std::string which =
      count == 1 ? "element " + number(index) : number(count) + " elements from " + number(index) + " on";
  if (index < 0 || index + count > elements)
    fail(ErrorKind::out_of_bounds_shared, where, array.name,
         std::string(array.name) + " has " + number(elements) + " elements; this access is to " + which,
         array.where);
  fail(ErrorKind::misaligned, where, array.name,
       which + ": an access of " + number(count) + " elements at once must start at a multiple of " +
           number(count),
       array.where);
}

void fail_shared(const SharedArray& array, std::int64_t i, std::int64_t j, int rows, int columns,
                 const char* file, unsigned line) {
  const Where where = Where::here(file, line);
  fail(ErrorKind::out_of_bounds_shared, where, array.name,
       std::string(array.name) + " is " + number(rows) + " x " + number(columns) + "; this access is to (" +
           number(i) + ", " + number(j) + ")",
       array.where);
}

int next_turn() {
  Cluster& cluster = *running.cluster;
  const dim3 grid = cluster.launch->grid;
  return static_cast<int>(cluster.turns++ * (grid.x * grid.y * grid.z / cluster.launch->cluster) +
                          cluster.number);
}

void mask_tile() {
  std::vector<bool>& masked = running.thread->block->masked;
  const std::size_t tile = running.thread->tiles;
  if (masked.size() <= tile) masked.resize(tile + 1);
  if (masked[tile]) return;
  masked[tile] = true;
  ++running.counts.masked_tiles;
}

namespace {

void note_row(int row) {
  const std::size_t tile = running.thread->tiles;
  if (tile == 0) return;  // what is asked before the first tile is about none
  auto& asked = running.cluster->warp[running.thread->warp].asked_rows;
  if (asked.size() <= tile) asked.resize(tile + 1, {Warp::no_row, Warp::no_row});
  for (int& one : asked[tile]) {
    if (one == row) return;
    if (one == Warp::no_row) {
      one = row;
      return;
    }
  }
  mask_tile();
}

/// The first launch that may still run, for all that the running thread knows.
std::uint32_t unfinished_launch(const Cluster& cluster) {
  for (const auto& [warp, step] : cluster.grid_waits) {
    if (cluster.races.knows(running.thread->warp, warp, step)) return cluster.launch->number;
  }
  return cluster.launch->unfinished;
}

}  // namespace

int ask_for_row(int row) {
  note_row(row);
  return running.cluster->launch->options->added_to_rows;
}

void check_global(GlobalBuffer& buffer, std::int64_t element, GlobalMarks::Use use, Where where) {
  const Cluster& cluster = *running.cluster;
  const unsigned number_of_block = running.thread->block->linear;
  const auto conflict = buffer.check(element, use, cluster.launch->number, unfinished_launch(cluster),
                                     number_of_block, where);
  if (!conflict) return;
  const std::string name = buffer.name() + " element " + number(element);
  if (conflict->kind == ErrorKind::uninitialised_global)
    fail(conflict->kind, where, buffer.name(), name + " is read, and no kernel or upload has written it");
  if (conflict->kind == ErrorKind::missing_grid_wait)
    fail(conflict->kind, where, buffer.name(),
         name + " is " + (use == GlobalMarks::Use::read ? "read" : "written") +
             ", and a kernel before, which " + (conflict->earlier_wrote ? "writes" : "reads") + " it (" +
             to_string(conflict->where) +
             "), may still run: this thread cannot know that grid_dependency_wait() was executed",
         conflict->where);
  fail_race(*conflict, use != GlobalMarks::Use::read, where, buffer.name(), name,
            "block number " + number(number_of_block), "another block");
}

void observe_global(GlobalBuffer& buffer, std::int64_t byte, unsigned bytes, GlobalMarks::Use use,
                    const char* file, unsigned line) {
  const Where where = Where::here(file, line);
  Cluster& cluster = *running.cluster;
  const Options& options = *cluster.launch->options;
  ++running.thread->work.global;
  if (running.trace != nullptr) running.trace->touch(buffer.slot, use, byte, bytes);
  if (options.banks)
    cluster.warp[running.thread->warp].log.record(
        {static_cast<std::uint64_t>(byte), &running.global[buffer.slot], where.line,
         static_cast<std::uint8_t>(bytes), static_cast<std::uint8_t>(running.thread->lane),
         access_kind(use)});
  if (!options.check) return;
  count_access(buffer.name().c_str(), where);
  const std::int64_t size = buffer.element_bytes();
  for (std::int64_t i = byte / size; i * size < byte + static_cast<std::int64_t>(bytes); ++i) {
    check_global(buffer, i, use, where);
  }
}

void observe_shared(SharedArray& array, const void* data, unsigned bytes, bool write, const char* file,
                    unsigned line) {
  const Where where = Where::here(file, line);
  Cluster& cluster = *running.cluster;
  const Options& options = *cluster.launch->options;
  const Thread& me = *running.thread;
  const auto byte = static_cast<std::uint32_t>(static_cast<const std::byte*>(data) - cluster.shared.base());
  ++running.thread->work.shared;
  if (options.banks)
    cluster.warp[me.warp].log.record({byte, &array.traffic, where.line, static_cast<std::uint8_t>(bytes),
                                      static_cast<std::uint8_t>(me.lane),
                                      write ? AccessKind::shared_store : AccessKind::shared_load});
  if (!options.check) return;
  count_access(array.name, where);
  if (const auto conflict =
          cluster.races.access(me.warp, me.lane, byte, bytes, array.granule, write, where))
    report_conflict(*conflict, array, byte, write, where);
}

}  // namespace flashladder::simt
