#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/error.hpp"

namespace flashladder {

static_assert(std::endian::native == std::endian::little,
              "the readers copy little-endian numbers as they are");

/// Reads numbers and runs of bytes one after the other, and never past the end.
class ByteReader {
 public:
  /// @param bytes  to read from; not copied
  /// @param where  what the bytes are, for errors: "q.npy: the .npy header"
  ByteReader(std::span<const std::byte> bytes, std::string where)
      : bytes_(bytes), where_(std::move(where)) {}

  /// Bytes read so far.
  std::size_t position() const { return position_; }
  /// Bytes still to read.
  std::size_t left() const { return bytes_.size() - position_; }

  /// The next `count` bytes. Throws Error when fewer are left.
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > left()) damaged();
    position_ += count;
    return bytes_.subspan(position_ - count, count);
  }

  /// The next `count` bytes as text, not checked to be printable.
  std::string text(std::uint64_t count) {
    const auto bytes = take(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// The next number, stored in little-endian order.
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  /// Passes over a 32-bit signature. Throws Error when something else is there.
  void expect(std::uint32_t signature) {
    if (number<std::uint32_t>() != signature) damaged();
  }

 private:
  [[noreturn]] void damaged() const {
    throw Error(where_ + " is cut short or damaged; save it or copy it again");
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  std::size_t position_ = 0;
};

/// Throws Error, naming `what`, where this machine does not have `bytes` of memory free.
void require_memory(std::uint64_t bytes, const std::string& what);

/// All bytes of a file. Throws Error where it is missing, a directory, a pipe or a device, larger than the
/// memory, or cannot be read.
std::vector<std::byte> read_file(const std::filesystem::path& path);

}  // namespace flashladder
