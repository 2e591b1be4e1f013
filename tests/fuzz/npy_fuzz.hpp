#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "common/error.hpp"
#include "common/io/npz.hpp"

/// What must hold of any bytes: the readers refuse them with an Error, or the array they make of them is
/// whole. Throws something other than an Error where that is not so.
inline void read_any_bytes(std::span<const std::byte> bytes) {
  const auto check = [](const flashladder::Array& array) {
    std::int64_t elements = 1;
    for (const std::int64_t size : array.shape) elements *= size;
    if (elements != static_cast<std::int64_t>(array.values.size())) {
      throw std::logic_error("an array was accepted whose values are not as many as its shape says");
    }
  };
  try {
    check(flashladder::parse_npy(bytes, "fuzz.npy"));
  } catch (const flashladder::Error&) {
  }
  try {
    for (const auto& [name, array] : flashladder::parse_npz(bytes, "fuzz.npz")) check(array);
  } catch (const flashladder::Error&) {
  }
}
