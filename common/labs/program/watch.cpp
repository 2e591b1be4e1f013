#include "common/labs/program/watch.hpp"

#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/check/allocations.hpp"
#include "common/error.hpp"
#include "common/labs/program/calls.hpp"

extern "C" void __sanitizer_cov_trace_pc();  // NOLINT(bugprone-reserved-identifier)
// Of the program, by the linker.
extern "C" char __executable_start, __data_start, etext, _end;  // NOLINT(bugprone-reserved-identifier)

namespace flashladder::lab {
namespace {

using Address = std::uintptr_t;

Address address_of(const void* pointer) {
  return reinterpret_cast<Address>(pointer);
}

/// Memory that is all 0 and takes room only where it is used. It is not got as the student's file would get
/// it, and so it is not counted.
template <class T>
T* reserve(std::size_t count) {
  const long got = syscall(SYS_mmap, nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
  if (got < 0 && got > -4096) throw Error("the labs of CPU stages take more memory: raise --memory-limit");
  return reinterpret_cast<T*>(got);  // NOLINT(performance-no-int-to-ptr)
}

/// Memory with a name.
struct Range {
  Address begin = 0;
  std::size_t bytes = 0;
  bool has(Address at) const { return at - begin < bytes; }
  std::int64_t element(Address at) const { return static_cast<std::int64_t>((at - begin) / sizeof(float)); }
};

/// Who used a byte in this phase.
struct Tag {
  std::uint32_t phase;
  std::uint16_t readers;  ///< A bit for each thread.
  std::uint8_t writer;    ///< Thread + 1, or 0.
  bool free;              ///< Whether some access was under no lock.
};

constexpr std::size_t page = 4096, most_pages = 4096, table_size = 4 * most_pages;

/// The tags of all memory, page by page.
class Tags {
 public:
  void start() {
    if (tags_ == nullptr) {
      tags_ = reserve<Tag>(page * most_pages);
      table_ = reserve<Entry>(table_size);
    }
  }
  /// Of the page that begins at `at`; nullptr where there are too many.
  Tag* of_page(Address at) {
    if (at == last_page_) return last_;
    for (std::size_t i = at / page * 0x9e3779b97f4a7c15u >> 32;; ++i) {
      Entry& entry = table_[i % table_size];
      if (entry.page == 0) {
        if (pages_ == most_pages) return nullptr;
        entry = {at, tags_ + page * pages_++};
      }
      if (entry.page != at) continue;
      last_page_ = at;
      return last_ = entry.tags;
    }
  }

 private:
  struct Entry {
    Address page;
    Tag* tags;
  };
  Tag* tags_ = nullptr;
  Entry* table_ = nullptr;
  std::size_t pages_ = 0;
  Address last_page_ = 0;
  Tag* last_ = nullptr;
};

/// Counts the words of some memory that were written.
class Words {
 public:
  void start(std::size_t bytes) {
    if (written_ == nullptr) written_ = reserve<bool>(bytes / 4 + 1);
    std::fill_n(written_, bytes / 4 + 1, false);
    size_ = bytes;
    count_ = 0;
  }
  /// So many bytes from there on; what is outside is not counted.
  void write(std::size_t from, std::size_t bytes) {
    for (std::size_t i = from; from < size_ && i < std::min(from + bytes, size_); i += 4) {
      count_ += !written_[i / 4];
      written_[i / 4] = true;
    }
  }
  std::size_t size() const { return size_; }
  std::int64_t bytes() const { return count_ * 4; }

 private:
  bool* written_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t count_ = 0;
};

bool watching = false, several = false;
Watched seen;
Range Q, K, V, O, L;
Range workspace[8];  // its first arrays
std::size_t arrays = 0;
Words statics, thread_locals;
Tags tags;
std::uint32_t* blocks = nullptr;  // how often the block ran whose call returns to &__executable_start + i
std::uint32_t phase = 0;
std::array<std::int64_t, 16> numbers_written{}, rows_written{};  // to O, and to L, by each thread
int thread = 0;                                                  // which one runs
bool under_lock = false;

thread_local Address stack_begin = 0;  // of each thread that is watched

std::size_t program_bytes() {
  return static_cast<std::size_t>(&etext - &__executable_start);
}

std::size_t bytes_of_thread_locals() {
  std::size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type == PT_TLS)
            *static_cast<std::size_t*>(to) = info->dlpi_phdr[i].p_memsz;
        }
        return 1;  // the program itself comes first
      },
      &bytes);
  return bytes;
}

bool in_workspace(Address at) {
  return std::ranges::any_of(workspace, [at](const Range& range) { return range.has(at); });
}

void find_race(Address at, std::size_t bytes, bool writes, const void* from) {
  bool raced = false;
  int before = 0;
  const std::uint16_t own = std::uint16_t{1} << thread;
  for (std::size_t i = 0; i < bytes; ++i) {
    Tag* const all = tags.of_page((at + i) / page * page);
    if (all == nullptr) {
      seen.complete = false;
      return;
    }
    Tag& tag = all[(at + i) % page];
    if (tag.phase != phase) tag = {phase, 0, 0, false};
    const bool other_wrote = tag.writer != 0 && tag.writer != thread + 1,
               other_read = writes && (tag.readers & ~own) != 0;
    if ((other_wrote || other_read) && (tag.free || !under_lock) && !raced) {
      raced = true;
      before = other_wrote ? tag.writer - 1 : __builtin_ctz(tag.readers & ~own);
    }
    if (writes) {
      tag.writer = static_cast<std::uint8_t>(thread + 1);
    } else {
      tag.readers |= own;
    }
    tag.free = tag.free || !under_lock;
  }
  if (!raced || seen.races++ > 0) return;
  seen.race = {Race::Memory::other, 0, before, thread, writes, place_in_program(from)};
  const std::pair<Range, Race::Memory> names[] = {{Q, Race::Memory::Q},
                                                  {K, Race::Memory::K},
                                                  {V, Race::Memory::V},
                                                  {O, Race::Memory::O},
                                                  {L, Race::Memory::L}};
  for (const auto& [range, name] : names) {
    if (range.has(at))
      seen.race = {name, range.element(at), before, thread, writes, place_in_program(from)};
  }
  for (const Range& range : workspace) {
    if (range.has(at))
      seen.race = {Race::Memory::workspace, range.element(at), before, thread, writes,
                   place_in_program(from)};
  }
}

void access(const void* pointer, std::size_t bytes, bool writes, const void* from) {
  if (!watching) return;
  if (stack_begin == 0) {  // a thread that OpenMP did not start: it may run beside another
    seen.complete = false;
    return;
  }
  const Address at = address_of(pointer);
  const auto elements = static_cast<std::int64_t>((bytes + 3) / 4);
  if (writes) {
    const std::size_t who = static_cast<std::size_t>(thread) % numbers_written.size();
    if (O.has(at)) numbers_written[who] += elements;
    if (L.has(at)) rows_written[who] += elements;
    if (O.has(at) || L.has(at)) seen.output_writes += elements;
    if (in_workspace(at)) seen.workspace_writes += elements;
    statics.write(at - address_of(&__data_start), bytes);
#ifdef __x86_64__  // where those of the program lie right below what the thread pointer points to
    thread_locals.write(at - address_of(__builtin_thread_pointer()) + thread_locals.size(), bytes);
#endif
  } else {
    if (K.has(at)) seen.K_reads += elements;
    if (V.has(at)) seen.V_reads += elements;
  }
  const Address here = address_of(__builtin_frame_address(0));
  if (here < stack_begin)
    seen.stack_bytes = std::max(seen.stack_bytes, static_cast<std::int64_t>(stack_begin - here));
  if (several) {
    seen.locked_accesses += under_lock;
    find_race(at, bytes, writes, from);
  }
}

/// What threads did with this memory before was with an array that has been given back since.
void observe_allocation(const void* memory, std::size_t bytes, bool by_workspace) {
  if (!watching) return;
  const Address begin = address_of(memory);
  if (by_workspace && arrays < std::size(workspace)) workspace[arrays++] = {begin, bytes};
  for (std::size_t i = 0; several && i < bytes; ++i) {
    if (Tag* const all = tags.of_page((begin + i) / page * page)) all[(begin + i) % page].phase = 0;
  }
}

void count_block(const void* returns_to) {
  if (!watching) return;
  const Address at = address_of(returns_to) - address_of(&__executable_start);
  if (at < program_bytes()) ++blocks[at];
}

/// An atomic access: it races with none, and others may wait for it.
void atomic_access(const volatile void* pointer, std::size_t bytes, bool writes, const void* from) {
  if (!watching) return;
  const bool before = std::exchange(under_lock, true);
  access(const_cast<const void*>(pointer), bytes, writes, from);  // NOLINT(*-const-cast)
  under_lock = before;
}

Range range_of(const Tensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t rows,
               std::int64_t d) {
  const std::int64_t last =
      (batch - 1) * tensor.stride[0] + (heads - 1) * tensor.stride[1] + (rows - 1) * tensor.stride[2] + d;
  return {address_of(tensor.data), static_cast<std::size_t>(last) * sizeof(float)};
}

}  // namespace

void start_watching(const Forward* call) {
  seen = {};
  seen.complete = true;
  Q = K = V = O = L = {};
  if (call != nullptr) {
    const Problem& p = call->problem;
    Q = range_of(call->Q, p.batch, p.q_heads, p.Nq, p.d);
    K = range_of(call->K, p.batch, p.kv_heads, p.Nk, p.d);
    V = range_of(call->V, p.batch, p.kv_heads, p.Nk, p.d);
    O = range_of(call->O, p.batch, p.q_heads, p.Nq, p.d);
    L = {address_of(call->L.data), static_cast<std::size_t>(p.batch * p.q_heads * p.Nq) * sizeof(float)};
  }
  std::ranges::fill(workspace, Range());
  arrays = 0;
  statics.start(address_of(&_end) - address_of(&__data_start));
  thread_locals.start(bytes_of_thread_locals());
  tags.start();
  if (blocks == nullptr) blocks = reserve<std::uint32_t>(program_bytes());
  std::fill_n(blocks, program_bytes(), 0);
  numbers_written = rows_written = {};
  stack_begin = address_of(__builtin_frame_address(0));
  begin_phase(false);
  begin_turn(0, false);
  allocation_observer = observe_allocation;
  watching = true;
}

void stop_watching() {
  watching = false;
  allocation_observer = nullptr;
}

Watched watched() {
  seen.writers = std::ranges::count_if(numbers_written, [](std::int64_t count) { return count > 0; });
  seen.most_written = std::ranges::max(numbers_written);
  seen.most_rows = std::ranges::max(rows_written);
  seen.static_bytes = statics.bytes() + thread_locals.bytes();
  for (std::size_t i = 0; i < program_bytes(); ++i) {
    if (blocks[i] != 0) seen.blocks.push_back({place_in_program(&__executable_start + i) + 1, blocks[i]});
  }
  return std::move(seen);
}

void never_watch() {
#ifdef __x86_64__
  constexpr unsigned char call = 0xe8, nothing[] = {0x0f, 0x1f, 0x44, 0x00, 0x00};  // call +32 bits; nop
  const Address first = address_of(&__executable_start) / page * page;
  const Address bytes = (address_of(&etext) - first + page - 1) / page * page;
  auto* const code = reinterpret_cast<unsigned char*>(first);  // NOLINT(performance-no-int-to-ptr)
  if (mprotect(code, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return;
  const Address counting = address_of(reinterpret_cast<const void*>(&__sanitizer_cov_trace_pc));
  for (std::size_t i = 0; i + sizeof nothing <= address_of(&etext) - first; ++i) {
    if (code[i] != call) continue;
    std::int32_t distance = 0;
    std::memcpy(&distance, code + i + 1, sizeof distance);
    if (first + i + sizeof nothing + static_cast<Address>(static_cast<std::int64_t>(distance)) == counting)
      std::memcpy(code + i, nothing, sizeof nothing);
  }
  mprotect(code, bytes, PROT_READ | PROT_EXEC);
#endif
}

void begin_phase(bool of_several) {
  ++phase;
  several = of_several;
}

void begin_turn(int id, bool locked) {
  thread = id;
  under_lock = locked;
  if (stack_begin == 0) stack_begin = address_of(__builtin_frame_address(0));
}

}  // namespace flashladder::lab

// The functions that the compiler puts calls of into the student's file.
// NOLINTBEGIN(bugprone-reserved-identifier)
using namespace flashladder::lab;  // NOLINT(google-build-using-namespace): what follows is C

#define CALLER __builtin_return_address(0)
#define ACCESS(name, bytes)                     \
  void __tsan_read##name(void* at) {            \
    access(at, bytes, false, CALLER);           \
  }                                             \
  void __tsan_write##name(void* at) {           \
    access(at, bytes, true, CALLER);            \
  }                                             \
  void __tsan_unaligned_read##name(void* at) {  \
    access(at, bytes, false, CALLER);           \
  }                                             \
  void __tsan_unaligned_write##name(void* at) { \
    access(at, bytes, true, CALLER);            \
  }                                             \
  void __tsan_volatile_read##name(void* at) {   \
    access(at, bytes, false, CALLER);           \
  }                                             \
  void __tsan_volatile_write##name(void* at) {  \
    access(at, bytes, true, CALLER);            \
  }
#define ATOMIC_CHANGE(bits, name)                                                    \
  std::uint##bits##_t __tsan_atomic##bits##_##name(volatile std::uint##bits##_t* at, \
                                                   std::uint##bits##_t value, int) { \
    atomic_access(at, (bits) / 8, true, CALLER);                                     \
    const auto before = __atomic_##name(at, value, __ATOMIC_SEQ_CST);                \
    let_others_go_on();                                                              \
    return before;                                                                   \
  }
#define ATOMICS(bits)                                                                                   \
  ATOMIC_CHANGE(bits, fetch_add)                                                                        \
  ATOMIC_CHANGE(bits, fetch_sub)                                                                        \
  ATOMIC_CHANGE(bits, fetch_and)                                                                        \
  ATOMIC_CHANGE(bits, fetch_or)                                                                         \
  ATOMIC_CHANGE(bits, fetch_xor)                                                                        \
  ATOMIC_CHANGE(bits, fetch_nand)                                                                       \
  std::uint##bits##_t __tsan_atomic##bits##_exchange(volatile std::uint##bits##_t* at,                  \
                                                     std::uint##bits##_t value, int) {                  \
    atomic_access(at, (bits) / 8, true, CALLER);                                                        \
    const auto before = __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                               \
    let_others_go_on();                                                                                 \
    return before;                                                                                      \
  }                                                                                                     \
  std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t* at, int) {         \
    atomic_access(at, (bits) / 8, false, CALLER);                                                       \
    let_others_go_on();                                                                                 \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                     \
  void __tsan_atomic##bits##_store(volatile std::uint##bits##_t* at, std::uint##bits##_t value, int) {  \
    atomic_access(at, (bits) / 8, true, CALLER);                                                        \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                      \
    let_others_go_on();                                                                                 \
  }                                                                                                     \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile std::uint##bits##_t* at,                   \
                                                    std::uint##bits##_t* expected,                      \
                                                    std::uint##bits##_t value, int, int) {              \
    atomic_access(at, (bits) / 8, true, CALLER);                                                        \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                     \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile std::uint##bits##_t* at,                     \
                                                  std::uint##bits##_t* expected,                        \
                                                  std::uint##bits##_t value, int order, int other) {    \
    return __tsan_atomic##bits##_compare_exchange_strong(at, expected, value, order, other);            \
  }
#define WATCHED_COPY(name, Source, reads)                         \
  void* __real_##name(void* to, Source from, std::size_t bytes);  \
  void* __wrap_##name(void* to, Source from, std::size_t bytes) { \
    if (bytes != 0) {                                             \
      reads;                                                      \
      access(to, bytes, true, CALLER);                            \
    }                                                             \
    return __real_##name(to, from, bytes);                        \
  }
#define COUNTED_EXP(name, Number)  \
  Number __real_##name(Number x);  \
  Number __wrap_##name(Number x) { \
    seen.exp += watching;          \
    return __real_##name(x);       \
  }
#define COUNTED_POW(name, Number)            \
  Number __real_##name(Number x, Number y);  \
  Number __wrap_##name(Number x, Number y) { \
    seen.exp += watching;                    \
    return __real_##name(x, y);              \
  }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
ACCESS(1, 1)
ACCESS(2, 2)
ACCESS(4, 4)
ACCESS(8, 8)
ACCESS(16, 16)
void __tsan_read_range(void* at, std::size_t bytes) {
  access(at, bytes, false, CALLER);
}
void __tsan_write_range(void* at, std::size_t bytes) {
  access(at, bytes, true, CALLER);
}
ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)
WATCHED_COPY(memset, int, )
WATCHED_COPY(memcpy, const void*, access(from, bytes, false, CALLER))
WATCHED_COPY(memmove, const void*, access(from, bytes, false, CALLER))

void __sanitizer_cov_trace_pc() {
  count_block(CALLER);
}

COUNTED_EXP(expf, float)
COUNTED_EXP(exp, double)
COUNTED_EXP(exp2f, float)
COUNTED_EXP(exp2, double)
COUNTED_EXP(expm1f, float)
COUNTED_EXP(expm1, double)
COUNTED_POW(powf, float)
COUNTED_POW(pow, double)

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
