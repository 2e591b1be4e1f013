#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace flashladder {

/// An array as a file holds it, in C order, its values widened or rounded to fp32.
struct Array {
  std::vector<std::int64_t> shape;  ///< Empty for a single number.
  std::vector<float> values;        ///< As many as the product of `shape`.
  std::string dtype;                ///< As the file names it: "<f2", "<f4" or "<f8".
};

/// The array that the bytes of an .npy file (format 1.0, 2.0 or 3.0) hold. Allocates only what
/// they back.
///
/// Takes fp32, fp16 (widened exactly) and fp64 (rounded to nearest), little-endian, in C order.
/// @param name  of the file, for errors
/// Throws Error for anything else, for an fp64 number too large for fp32, and for missing or extra bytes.
Array parse_npy(std::span<const std::byte> bytes, const std::string& name);

/// Throws the Error that parse_npy would throw for the header of an .npy file of `size` bytes, or for its
/// size, when only its `start` is there yet.
void check_npy_start(std::span<const std::byte> start, std::uint64_t size, const std::string& name);

/// The array in the .npy file at `path`. Throws Error as parse_npy does, and where the file cannot be read.
Array read_npy(const std::filesystem::path& path);

/// Writes fp32 values in C order as an .npy file of format 1.0. The file appears at `path` complete or not
/// at all, in place of what was there. Throws Error where it cannot be written, std::logic_error where
/// `values` are not as many as `shape` says.
void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               std::span<const float> values);

/// "(2, 3)", "(5,)" or "()": a shape as NumPy writes it.
std::string to_string(const std::vector<std::int64_t>& shape);

}  // namespace flashladder
