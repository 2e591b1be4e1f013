#pragma once
#include <atomic>
#include <concepts>
#include <cstring>
#include <type_traits>

#ifndef __clang__
#include <source_location>
#endif

#include "common/simt/global_buffer.hpp"
#include "common/simt/scalar.hpp"
#include "common/simt/scheduler.hpp"

// The pointers and arrays of a kernel. An access checks its bounds and is counted; both must be cheap, so
// that what is rare (an error, an observed run) is a call away in memory.cpp.

namespace flashladder::simt {

/// An index with the place that it is used at.
struct Index {
  std::int64_t value;  ///< In elements.
  Where where;         ///< Of the access.
  /// Any integer; `at` is the place of the access by itself.
  template <std::integral Integer>
  Index(Integer integer, Where at = Where::here()) : value(static_cast<std::int64_t>(integer)), where(at) {}
};

/// @name What is rare about an access
/// The place comes as a file and a line: a Where would be put together on the stack before each access, in
/// case that it is asked for.
/// @{

/// Reports an access of `count` elements at element `index` that is out of bounds or misaligned.
[[noreturn]] void fail_global(const GlobalBuffer* buffer, std::int64_t index, int count, const char* file,
                              unsigned line);
/// As fail_global, in shared memory.
[[noreturn]] void fail_shared(const SharedArray& array, std::int64_t index, int count,
                              std::uint32_t element_bytes, const char* file, unsigned line);
/// Reports indices outside a shared array of two dimensions.
[[noreturn]] void fail_shared(const SharedArray& array, std::int64_t i, std::int64_t j, int rows,
                              int columns, const char* file, unsigned line);
/// Logs and checks an access of `bytes` bytes at byte `byte` of a buffer.
void observe_global(GlobalBuffer& buffer, std::int64_t byte, unsigned bytes, GlobalMarks::Use use,
                    const char* file, unsigned line);
/// Fails where the running thread, or a unit for it, must not use an element of a buffer so.
void check_global(GlobalBuffer& buffer, std::int64_t element, GlobalMarks::Use use, Where where);
/// Logs and checks an access of `bytes` bytes at `data`.
void observe_shared(SharedArray& array, const void* data, unsigned bytes, bool write, const char* file,
                    unsigned line);
/// A conflict at byte `byte` of the block's shared memory as an error: at once, or as Block::early_read.
/// @param by_unit  whether it is found in what the running thread tells a unit to do
void report_conflict(const Conflict& conflict, const SharedArray& array, std::uint32_t byte, bool write,
                     Where where, bool by_unit = false);
/// The shared array declared at a place.
SharedArray& declare_shared(const char* name, Where where, unsigned column, std::size_t bytes,
                            std::size_t element_bytes);
/// `bytes` bytes of dynamic shared memory from byte `offset` on (0: all to its end).
SharedArray& declare_dynamic(const char* name, Where where, std::size_t offset, std::size_t bytes,
                             std::size_t element_bytes);
/// @}

/// Whether T may be an element of device memory: no number whose operations would not be counted.
template <class T>
inline constexpr bool is_counted = !std::is_floating_point_v<std::remove_const_t<T>>;

template <class T>
class gmem;
template <class T>
class smem;

/// What p[i] is for a gmem pointer to something that can be written: reading it is a load, assigning to it
/// is a store. It cannot be kept: `auto x = p[i]` would be a copy on a GPU and a reference here, so using x
/// does not compile; say `f32 x = p[i]`.
template <class T>
class GlobalElement {
 public:
  /// Element `index` of a buffer, in bounds.
  GlobalElement(GlobalBuffer* buffer, std::int64_t index, Where where)
      : buffer_(buffer), index_(index), where_(where) {}
  GlobalElement(const GlobalElement&) = delete;

  /// A load.
  operator T() && { return load(); }
  /// A store.
  void operator=(T value) && { store(value); }
  /// A load there and a store here.
  void operator=(GlobalElement&& other) && { store(other.load()); }
  /// A load and a store.
  void operator+=(T value) && { store(load() + value); }
  /// A load and a store.
  void operator-=(T value) && { store(load() - value); }
  /// A load and a store.
  void operator*=(T value) && { store(load() * value); }
  /// A load and a store.
  void operator/=(T value) && { store(load() / value); }
  /// The pointer.
  gmem<T> operator&() && { return {buffer_, index_}; }

 private:
  T load() const { return gmem<T>::template load<T>(buffer_, index_, where_); }
  void store(T value) const { gmem<T>::template store<T>(buffer_, index_, value, where_); }

  GlobalBuffer* buffer_;
  std::int64_t index_;
  Where where_;
};

/// A pointer to elements of T (const or not) in global memory; on a GPU, `T* __restrict__`. It knows its
/// buffer, and every access is checked against it.
template <class T>
class gmem {
  static_assert(is_counted<T>, "memory of plain floats: say f32, whose operations are counted");

 public:
  using Element = std::remove_const_t<T>;  ///< Without const.

  /// Points nowhere.
  gmem() = default;
  /// Element `offset` of a buffer.
  gmem(GlobalBuffer* buffer, std::int64_t offset) : buffer_(buffer), offset_(offset) {}
  /// A pointer through which nothing is written.
  template <class U>
  requires std::is_same_v<const U, T> gmem(const gmem<U>& other)
      : buffer_(other.buffer()), offset_(other.offset()) {}

  /// `n` elements on.
  template <std::integral Integer>
  gmem operator+(Integer n) const {
    return {buffer_, plus(static_cast<std::int64_t>(n))};
  }
  /// Moves `n` elements on.
  template <std::integral Integer>
  gmem& operator+=(Integer n) {
    return *this = *this + n;
  }
  /// Whether it points somewhere.
  explicit operator bool() const { return buffer_ != nullptr; }

  /// Element i: its value where T is const, else a reference that loads and stores.
  auto operator[](Index i) const {
    const std::int64_t at = plus(i.value);
    check<1>(buffer_, at, i.where);
    if constexpr (std::is_const_v<T>)
      return load<Element>(buffer_, at, i.where);
    else
      return GlobalElement<T>(buffer_, at, i.where);
  }

  /// The buffer it points into.
  GlobalBuffer* buffer() const { return buffer_; }
  /// Elements from the buffer's start.
  std::int64_t offset() const { return offset_; }

  /// Fails unless `count` elements from `at` on are in bounds, and `at` is a multiple of `count`.
  template <int count>
  static void check(const GlobalBuffer* buffer, std::int64_t at, Where where) {
    if (buffer == nullptr || static_cast<std::uint64_t>(at) >= static_cast<std::uint64_t>(buffer->elements))
        [[unlikely]]
      fail_global(buffer, at, count, where.file, where.line);
    if constexpr (count > 1)
      if (at % count != 0 || at + count > buffer->elements) [[unlikely]]
        fail_global(buffer, at, count, where.file, where.line);
  }
  /// Counts and makes a load of a Value (an element or a vector of them) that has been checked.
  template <class Value>
  static Value load(GlobalBuffer* buffer, std::int64_t at, Where where) {
    running.global[buffer->slot].read_bytes += sizeof(Value);
    const std::int64_t byte = at * static_cast<std::int64_t>(sizeof(T));
    if (running.observed) [[unlikely]]
      observe_global(*buffer, byte, sizeof(Value), GlobalMarks::Use::read, where.file, where.line);
    Value value;
    std::memcpy(&value, buffer->data + byte, sizeof value);
    return value;
  }
  /// Counts and makes a store that has been checked.
  template <class Value>
  static void store(GlobalBuffer* buffer, std::int64_t at, const Value& value, Where where) {
    running.global[buffer->slot].written_bytes += sizeof(Value);
    const std::int64_t byte = at * static_cast<std::int64_t>(sizeof(T));
    if (running.observed) [[unlikely]]
      observe_global(*buffer, byte, sizeof(Value), GlobalMarks::Use::write, where.file, where.line);
    std::memcpy(buffer->data + byte, &value, sizeof value);
  }

 private:
  /// Wraps around instead of overflowing: an offset gone wrong must reach the check.
  std::int64_t plus(std::int64_t n) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(offset_) + static_cast<std::uint64_t>(n));
  }

  GlobalBuffer* buffer_ = nullptr;
  std::int64_t offset_ = 0;
};

/// As GlobalElement, in shared memory.
template <class T>
class SharedElement {
 public:
  /// An element that lies in the array.
  SharedElement(SharedArray* array, T* data, Where where) : array_(array), data_(data), where_(where) {}
  SharedElement(const SharedElement&) = delete;

  /// A load.
  operator T() && { return load(); }
  /// A store.
  void operator=(T value) && { store(value); }
  /// A load there and a store here.
  void operator=(SharedElement&& other) && { store(other.load()); }
  /// A load and a store.
  void operator+=(T value) && { store(load() + value); }
  /// A load and a store.
  void operator-=(T value) && { store(load() - value); }
  /// A load and a store.
  void operator*=(T value) && { store(load() * value); }
  /// A load and a store.
  void operator/=(T value) && { store(load() / value); }
  /// The pointer.
  smem<T> operator&() && { return {array_, data_ - reinterpret_cast<T*>(array_->data)}; }

 private:
  T load() const {
    array_->traffic.read_bytes += sizeof(T);
    if (running.observed) [[unlikely]]
      observe_shared(*array_, data_, sizeof(T), false, where_.file, where_.line);
    return *data_;
  }
  void store(T value) const {
    array_->traffic.written_bytes += sizeof(T);
    if (running.observed) [[unlikely]]
      observe_shared(*array_, data_, sizeof(T), true, where_.file, where_.line);
    *data_ = value;
  }

  SharedArray* array_;
  T* data_;
  Where where_;
};

/// A pointer to elements of T in shared memory; on a GPU, `T*`.
template <class T>
class smem {
  static_assert(is_counted<T>, "memory of plain floats: say f32, whose operations are counted");

 public:
  using Element = std::remove_const_t<T>;  ///< Without const.

  /// Points nowhere; using it is an error.
  smem() = default;
  /// Element `offset` of an array.
  smem(SharedArray* array, std::int64_t offset) : array_(array), offset_(offset) {}
  /// A pointer through which nothing is written.
  template <class U>
  requires std::is_same_v<const U, T> smem(const smem<U>& other)
      : array_(other.array()), offset_(other.offset()) {}

  /// `n` elements on.
  template <std::integral Integer>
  smem operator+(Integer n) const {
    return {array_, offset_ + static_cast<std::int64_t>(n)};
  }
  /// Element i: its value where T is const, else a reference that loads and stores.
  auto operator[](Index i) const {
    Element* at = find<1>(i.value, i.where);
    if constexpr (std::is_const_v<T>)
      return static_cast<Element>(SharedElement<Element>(array_, at, i.where));
    else
      return SharedElement<T>(array_, at, i.where);
  }

  /// The array it points into.
  SharedArray* array() const { return array_; }
  /// Elements from the array's start.
  std::int64_t offset() const { return offset_; }

  /// The address of `count` elements from element i on; fails unless they are in bounds and aligned.
  template <int count>
  Element* find(std::int64_t i, Where where) const {
    const std::int64_t at = offset_ + i;
    if (array_ == nullptr) [[unlikely]]
      fail(ErrorKind::out_of_bounds_shared, where, "(null)", "the pointer points nowhere");
    const auto elements = static_cast<std::int64_t>(array_->bytes / sizeof(T));
    if (at < 0 || at + count > elements ||
        (count > 1 && (array_->offset / sizeof(T) + static_cast<std::uint64_t>(at)) % count != 0))
        [[unlikely]]
      fail_shared(*array_, at, count, sizeof(T), where.file, where.line);
    return reinterpret_cast<Element*>(array_->data) + at;
  }
  /// The address of `count` elements from here on, counted as one load.
  template <int count>
  const Element* read(Where where) const {
    const Element* at = find<count>(0, where);
    array_->traffic.read_bytes += count * sizeof(T);
    if (running.observed) [[unlikely]]
      observe_shared(*array_, at, count * sizeof(T), false, where.file, where.line);
    return at;
  }
  /// The address of `count` elements from here on, counted as one store.
  template <int count>
  Element* write(Where where) const {
    Element* at = find<count>(0, where);
    array_->traffic.written_bytes += count * sizeof(T);
    if (running.observed) [[unlikely]]
      observe_shared(*array_, at, count * sizeof(T), true, where.file, where.line);
    return at;
  }

 private:
  SharedArray* array_ = nullptr;
  std::int64_t offset_ = 0;
};

/// A shared array of R x C elements as a helper function takes it, whatever its name.
template <class T, int R, int C>
class smem_tile {
  static_assert(is_counted<T>, "memory of plain floats: say f32, whose operations are counted");

 public:
  /// Element (i, j), i < R, j < C.
  SharedElement<T> operator()(Index i, Index j) const {
    if (static_cast<std::uint64_t>(i.value) >= R || static_cast<std::uint64_t>(j.value) >= C) [[unlikely]]
      fail_shared(*array_, i.value, j.value, R, C, j.where.file, j.where.line);
    return {array_, data_ + i.value * C + j.value, j.where};
  }
  /// Element i of all R * C, row by row.
  SharedElement<T> operator[](Index i) const {
    if (static_cast<std::uint64_t>(i.value) >= std::uint64_t{R} * C) [[unlikely]]
      fail_shared(*array_, i.value, 1, sizeof(T), i.where.file, i.where.line);
    return {array_, data_ + i.value, i.where};
  }
  /// A pointer to element (i, j), for load4 and store4.
  smem<T> at(int i, int j) const { return {array_, std::int64_t{i} * C + j}; }
  /// A pointer to its first element.
  operator smem<T>() const { return {array_, 0}; }

  /// The elements of an array of the block.
  explicit smem_tile(SharedArray& array) : array_(&array), data_(reinterpret_cast<T*>(array.data)) {}

 private:
  SharedArray* array_;
  T* data_;
};

/// The name of a shared array, as a template argument.
template <std::size_t N>
struct Name {
  char text[N];  ///< Ends in a zero.
  /// From a string literal.
  constexpr Name(const char (&literal)[N]) : text{} {
    for (std::size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
};

/// A shared array of R x C elements: `__shared__ smem_array<f32, Br, Bc + 1, "P"> P;`. The name is that of
/// the ledger and of errors. It is a template argument because a __shared__ variable on a GPU may have no
/// constructor that could take it, and there it costs nothing.
template <class T, int R, int C = 1, Name name = "(unnamed)">
struct smem_array : smem_tile<T, R, C> {
  /// Finds the block's array that belongs to this declaration.
#ifdef __clang__
  smem_array(Where where = Where::here(), unsigned column = __builtin_COLUMN())
#else
  smem_array(Where where = Where::here(), unsigned column = std::source_location::current().column())
#endif
      : smem_tile<T, R, C>(declare_shared(name.text, where, column, sizeof(T) * R * C, sizeof(T))) {
  }
};

/// Dynamic shared memory from byte `offset` on, under a name.
template <class T, Name name = "dynamic">
smem<T> dynamic_smem(std::size_t offset = 0, Where where = Where::here()) {
  return {&declare_dynamic(name.text, where, offset, 0, sizeof(T)), 0};
}

/// A shared array in dynamic shared memory, which may be larger than the 48 KiB of declared arrays:
/// `auto&& K = dynamic_tile<f32, Bc, d + 1, "K">(offset);`, `offset` in bytes, a multiple of 16.
template <class T, int R, int C = 1, Name name = "dynamic">
smem_tile<T, R, C> dynamic_tile(std::size_t offset, Where where = Where::here()) {
  return smem_tile<T, R, C>(declare_dynamic(name.text, where, offset, sizeof(T) * R * C, sizeof(T)));
}

/// The two elements from p on, as one access of 8 bytes.
template <class T>
requires(sizeof(T) == 4) float2 load2(gmem<T> p, Where where = Where::here()) {
  gmem<T>::template check<2>(p.buffer(), p.offset(), where);
  return gmem<T>::template load<float2>(p.buffer(), p.offset(), where);
}
/// The four elements from p on, as one access of 16 bytes.
template <class T>
requires(sizeof(T) == 4) float4 load4(gmem<T> p, Where where = Where::here()) {
  gmem<T>::template check<4>(p.buffer(), p.offset(), where);
  return gmem<T>::template load<float4>(p.buffer(), p.offset(), where);
}
/// The two elements from p on, as one access of 8 bytes.
template <class T>
requires(sizeof(T) == 4) float2 load2(smem<T> p, Where where = Where::here()) {
  const auto* data = p.template read<2>(where);
  float2 value;
  std::memcpy(static_cast<void*>(&value), data, 8);
  return value;
}
/// The four elements from p on, as one access of 16 bytes.
template <class T>
requires(sizeof(T) == 4) float4 load4(smem<T> p, Where where = Where::here()) {
  const auto* data = p.template read<4>(where);
  float4 value;
  std::memcpy(&value, data, 16);
  return value;
}
/// Stores four elements from p on, as one access of 16 bytes.
template <class T>
requires(sizeof(T) == 4) void store4(gmem<T> p, float4 value, Where where = Where::here()) {
  gmem<T>::template check<4>(p.buffer(), p.offset(), where);
  gmem<T>::template store<float4>(p.buffer(), p.offset(), value, where);
}
/// Stores four elements from p on, as one access of 16 bytes.
template <class T>
requires(sizeof(T) == 4) void store4(smem<T> p, float4 value, Where where = Where::here()) {
  std::memcpy(static_cast<void*>(p.template write<4>(where)), &value, 16);
}

/// Adds to the elements from p on, each as one operation, by one instruction; returns what was in the
/// first.
template <int count>
f32 add_atomically(gmem<f32> p, const f32 (&values)[count], Where where) {
  gmem<f32>::check<count>(p.buffer(), p.offset(), where);
  running.counts.atomics += count;
  running.counts.add += count;
  running.global[p.buffer()->slot].atomic_bytes += 4 * count;
  if (running.observed)
    observe_global(*p.buffer(), p.offset() * 4, 4 * count, GlobalMarks::Use::atomic, where.file,
                   where.line);
  auto* data = reinterpret_cast<float*>(p.buffer()->data) + p.offset();
  const float before = std::atomic_ref<float>(*data).fetch_add(Plain::number(values[0]));
  for (int i = 1; i < count; ++i) std::atomic_ref<float>(data[i]).fetch_add(Plain::number(values[i]));
  return before;
}

/// Adds to the element that p points to, as one operation; returns what was there.
inline f32 atomic_add(gmem<f32> p, f32 value, Where where = Where::here()) {
  return add_atomically<1>(p, {value}, where);
}
/// Adds to the element that p points to, as one operation; returns what was there.
template <std::integral T>
T atomic_add(gmem<T> p, std::type_identity_t<T> value, Where where = Where::here()) {
  gmem<T>::template check<1>(p.buffer(), p.offset(), where);
  ++running.counts.atomics;
  running.global[p.buffer()->slot].atomic_bytes += sizeof(T);
  if (running.observed)
    observe_global(*p.buffer(), p.offset() * static_cast<std::int64_t>(sizeof(T)), sizeof(T),
                   GlobalMarks::Use::atomic, where.file, where.line);
  return std::atomic_ref<T>(*(reinterpret_cast<T*>(p.buffer()->data) + p.offset())).fetch_add(value);
}

/// Adds to the two integers from p on, 8 bytes, as one operation: one 64-bit addition.
inline void atomic_add2(gmem<int> p, unsigned first, int second, Where where = Where::here()) {
  gmem<int>::check<2>(p.buffer(), p.offset(), where);
  ++running.counts.atomics;
  running.global[p.buffer()->slot].atomic_bytes += 8;
  if (running.observed)
    observe_global(*p.buffer(), p.offset() * 4, 8, GlobalMarks::Use::atomic, where.file, where.line);
  auto* data = reinterpret_cast<std::int64_t*>(reinterpret_cast<int*>(p.buffer()->data) + p.offset());
  std::atomic_ref<std::int64_t>(*data).fetch_add(std::int64_t{second} * (std::int64_t{1} << 32) + first);
}

/// How often this cluster has asked so far, times the clusters of the grid, plus its number.
int next_turn();

/// The next number of a counter that all blocks share: no block has drawn it before. On a GPU it depends on
/// who comes first. Here the blocks take turns, block b of n draws b, n + b, 2 n + b and so on: counts do
/// not depend on the order in which blocks run. (Of clusters one block should draw; then cluster c of n
/// does.)
inline int draw(gmem<int> counter, Where where = Where::here()) {
  atomic_add(counter, 1, where);
  return next_turn();
}

/// The tile that the running thread is at is masked.
void mask_tile();

/// Says that the block has come to a tile of scores, masked or not. All threads that have a part of it say
/// so; it counts once.
inline void count_tile(bool masked = false, Where where = Where::here()) {
  if (++running.thread->tiles > running.thread->block->tiles) {
    running.thread->block->tiles = running.thread->tiles;
    ++running.counts.tiles;
  }
  if (masked) mask_tile();
  note(Step::Kind::tile, running.thread->tiles, 0, 0, where);
}

/// Says that the running thread asks which keys a row sees. To decide whether a tile is masked, all lanes
/// of a warp ask for the same row or two; where they ask for more, it is masked, whatever count_tile()
/// said.
/// @returns Options::added_to_rows
int ask_for_row(int row);

}  // namespace flashladder::simt
