#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/simt/races.hpp"

namespace flashladder::simt {

/// Set in an address, it makes one that no memory has: so the host gets what it must not access itself.
inline constexpr std::uintptr_t device_only = std::uintptr_t{1} << 54;

/// A piece of device memory with a name: what a gmem pointer points into. It either owns its memory, which
/// then starts as NaN, or is a view of memory that somebody else owns.
class GlobalBuffer {
 public:
  /// Owns `elements` elements of `element_bytes` bytes each, counted as device memory. Throws Error when
  /// there is not enough.
  GlobalBuffer(std::string name, std::int64_t elements, std::int64_t element_bytes);
  /// A view of `elements` elements at `data`, which may be hidden by `device_only`.
  GlobalBuffer(std::string name, void* data, std::int64_t elements, std::int64_t element_bytes);
  ~GlobalBuffer();
  GlobalBuffer(const GlobalBuffer&) = delete;
  GlobalBuffer& operator=(const GlobalBuffer&) = delete;

  std::byte* data;              ///< Of the first element.
  const std::int64_t elements;  ///< How many.
  const std::size_t slot;       ///< Where an OS thread counts its traffic: Running::global[slot].

  /// For the ledger and errors.
  const std::string& name() const { return name_; }
  /// Of one element.
  std::int64_t element_bytes() const { return element_bytes_; }

  /// Counts the memory of a view as device memory, as if the buffer owned it.
  void count_memory();
  /// All elements have a value from now on: uploaded, or zeroed.
  void set_initialised() { initialised_ = true; }
  /// A run begins: every element is NaN, and counts as not written.
  void poison();
  /// Throws KernelError (unwritten_output) unless kernels wrote every element since the buffer was made or
  /// poisoned. Without Options::check, an element is taken for unwritten while it holds the poison's bits.
  void require_written() const;

  /// What an access under Options::check does wrong, if anything.
  std::optional<Conflict> check(std::int64_t element, GlobalMarks::Use use, std::uint32_t launch,
                                std::uint32_t unfinished, std::uint32_t block, Where where);

  /// Bytes of all buffers that there are and whose memory counts.
  static std::uint64_t bytes_in_use();
  /// The most there ever were at once since reset_peak().
  static std::uint64_t peak_bytes();
  /// The peak starts again from what is in use.
  static void reset_peak();

  /// One more than the largest slot in use.
  static std::size_t slots();
  /// What the ledger says of a slot.
  struct Label {
    std::string name;             ///< The buffer's.
    std::uint64_t element_bytes;  ///< Of one element.
    std::int64_t elements;        ///< How many.
  };
  /// The label of a slot; an empty one where it is not in use.
  static Label label_of_slot(std::size_t slot);
  /// A launch without Options::check has begun: what it writes goes unseen, so that from now on no element
  /// can be said to be unwritten.
  static void forget_what_is_written();

 private:
  std::string name_;
  std::int64_t element_bytes_;
  bool owns_;
  bool counted_ = false;  ///< As device memory: that it owns, and what count_memory() was asked for.
  bool initialised_;
  std::unique_ptr<GlobalMarks> marks_;
};

}  // namespace flashladder::simt
