#include "common/io/npy.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "common/io/bytes.hpp"
#include "common/io/whole_file.hpp"

namespace flashladder {
namespace {

constexpr std::string_view magic = "\x93NUMPY";

/// Elements of an array of this shape; none where no array can have it. The limits are NumPy's: 64
/// dimensions, and 64-bit sizes, also for the other dimensions of an empty array.
std::optional<std::int64_t> element_count(const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / std::int64_t{sizeof(double)};
  if (shape.size() > 64) return std::nullopt;
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0 || size > most / count) return std::nullopt;
    empty |= size == 0;
    count *= std::max<std::int64_t>(size, 1);
  }
  return empty ? 0 : count;
}

/// Why an array of this dtype is not read, and what to save instead.
Error dtype_error(const std::string& name, const std::string& dtype) {
  if (dtype == "<V2" || dtype == "|V2") {
    return Error(name + ": holds raw 2-byte values (dtype " + dtype +
                 "), which is how bfloat16 of ml_dtypes" +
                 " gets saved; save np.ascontiguousarray(x).astype(np.float32) and use --dtype bf16");
  }
  static const std::map<char, std::string> kinds = {
      {'[', "structured records"},
      {'O', "Python objects"},
      {'i', "integers"},
      {'u', "integers"},
      {'c', "complex numbers"},
      {'b', "booleans"},
      {'V', "raw bytes"},
      {'S', "text"},
      {'U', "text"},
      {'f', "floats of another size or byte order"},
  };
  const char kind = dtype.size() > 1 && dtype[0] != '[' ? dtype[1] : dtype[0];  // it follows the byte order
  const auto found = kinds.find(kind);
  const std::string what = found == kinds.end() ? "something else" : found->second;
  const std::string part = kind == 'c' ? "x.real" : kind == '[' ? "x[\"field\"]" : "x";
  return Error(name + ": holds " + what + " (dtype " + dtype + "), not little-endian fp16, fp32 or fp64;" +
               " save np.ascontiguousarray(" + part + ").astype(np.float32)");
}

/// What the dict at the start of an .npy file says.
struct Header {
  std::string dtype;
  bool fortran_order;
  std::vector<std::int64_t> shape;
};

/// Parses that dict: a Python literal with three keys, in any order.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  Header parse() {
    std::optional<std::string> dtype;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::int64_t>> shape;
    list("{", "}", [&] {
      const std::string key = quoted();
      expect(":");
      if (key == "descr" && !dtype) {
        dtype = descr();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = accept("True");
        if (!*fortran_order) expect("False");
      } else if (key == "shape" && !shape) {
        shape.emplace();
        list("(", ")", [&] { shape->push_back(integer()); });
      } else {
        malformed();
      }
    });
    skip_space();
    if (!rest_.empty() || !dtype || !fortran_order || !shape) malformed();
    return {*dtype, *fortran_order, *shape};
  }

 private:
  [[noreturn]] void malformed() const {
    throw Error(name_ + ": the .npy header is not the dict of 'descr', 'fortran_order' and 'shape' that" +
                " NumPy writes; save it again with np.save");
  }

  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }

  bool accept(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token)) malformed();
  }

  /// Items between two brackets, with commas between them and perhaps one after the last.
  template <class ParseItem>
  void list(std::string_view open, std::string_view close, ParseItem parse_item) {
    expect(open);
    while (!accept(close)) {
      parse_item();
      if (!accept(",")) {
        expect(close);
        return;
      }
    }
  }

  std::string quoted() {
    skip_space();
    if (!rest_.starts_with('\'') && !rest_.starts_with('"')) malformed();
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == rest_.npos) malformed();
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::string descr() {
    if (accept("[")) throw dtype_error(name_, "[...]");  // fields and their types
    return quoted();
  }

  std::int64_t integer() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::invalid_argument) malformed();
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    // No array is as large as the largest number, so it stands for all that are too large.
    return error == std::errc::result_out_of_range ? std::numeric_limits<std::int64_t>::max() : value;
  }

  std::string_view rest_;
  const std::string& name_;
};

Header read_header(ByteReader& reader, const std::string& name) {
  if (reader.left() < magic.size() || reader.text(magic.size()) != magic) {
    throw Error(name + ": is not an .npy file; save it with np.save");
  }
  const int major = reader.number<std::uint8_t>();
  const int minor = reader.number<std::uint8_t>();
  if (major < 1 || major > 3 || minor != 0) {
    throw Error(name + ": has .npy format version " + std::to_string(major) + "." + std::to_string(minor) +
                ", not 1.0, 2.0 or 3.0; save it again with np.save");
  }
  const std::uint32_t size = major == 1 ? reader.number<std::uint16_t>() : reader.number<std::uint32_t>();
  return HeaderParser(reader.text(size), name).parse();
}

std::uint64_t item_size_of(const std::string& dtype) {
  return dtype == "<f2" ? 2 : dtype == "<f4" ? 4 : dtype == "<f8" ? 8 : 0;
}

/// The header of a file that can be read. Throws Error unless as many bytes follow it as its array takes.
/// @param after  bytes that follow what `reader` has
Header read_good_header(ByteReader& reader, std::uint64_t after, const std::string& name) {
  Header header = read_header(reader, name);
  const auto& [dtype, fortran_order, shape] = header;
  if (item_size_of(dtype) == 0) throw dtype_error(name, dtype);
  if (fortran_order) {
    throw Error(name + ": is in Fortran order; save np.ascontiguousarray(x).astype(np.float32)");
  }
  const auto count = element_count(shape);
  if (!count) {
    throw Error(name + ": declares a shape that no array can have (a negative or huge size, or more than" +
                " 64 dimensions); save it again with np.save");
  }
  const std::uint64_t needed = static_cast<std::uint64_t>(*count) * item_size_of(dtype);
  const std::uint64_t there = reader.left() + after;
  if (needed != there) {
    const std::string wrong = there < needed ? "the data is cut short" : "extra bytes follow the data";
    throw Error(name + ": " + wrong + ", shape " + to_string(shape) + " of dtype " + dtype + " takes " +
                std::to_string(needed) + " bytes and " + std::to_string(there) +
                " are there; save it or copy it again");
  }
  return header;
}

/// The fp32 number that fp16 `bits` stand for, exactly.
float widen_fp16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
    return std::copysign(static_cast<float>(fraction) * 0x1p-24f, std::bit_cast<float>(sign));
  }
  // 31 marks infinity and NaN as 255 does in fp32; the others differ by the two exponent biases.
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

/// `data`, elements of type `Stored`, as fp32: to_float is given each of them and its index.
template <class Stored, class ToFloat>
std::vector<float> convert(std::span<const std::byte> data, ToFloat to_float) {
  std::vector<float> values(data.size() / sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, &data[i * sizeof(Stored)], sizeof(Stored));
    values[i] = to_float(stored, i);
  }
  return values;
}

}  // namespace

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

Array parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  ByteReader reader(bytes, name + ": the .npy header");
  const auto [dtype, fortran_order, shape] = read_good_header(reader, 0, name);
  const std::uint64_t item_size = item_size_of(dtype);
  const std::span<const std::byte> data = reader.take(reader.left());
  if (item_size == 2) {
    return {shape, convert<std::uint16_t>(data, [](auto bits, std::size_t) { return widen_fp16(bits); }),
            dtype};
  }
  if (item_size == 4) {
    return {shape, convert<float>(data, [](float value, std::size_t) { return value; }), dtype};
  }
  const auto round_fp64 = [&](double value, std::size_t i) {
    const float rounded = static_cast<float>(value);
    if (std::isinf(rounded) && !std::isinf(value)) {
      throw Error(name + ": element " + std::to_string(i) + " (in C order, from 0) is too large for fp32;" +
                  " scale the values down and save them again");
    }
    return rounded;
  };
  return {shape, convert<double>(data, round_fp64), dtype};
}

void check_npy_start(std::span<const std::byte> start, std::uint64_t size, const std::string& name) {
  ByteReader reader(start, name + ": the .npy header");
  read_good_header(reader, size - start.size(), name);
}

Array read_npy(const std::filesystem::path& path) {
  return parse_npy(read_file(path), path.string());
}

void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               std::span<const float> values) {
  if (element_count(shape) != static_cast<std::int64_t>(values.size())) {
    throw std::logic_error("write_npy: shape " + to_string(shape) + " does not hold " +
                           std::to_string(values.size()) + " values");
  }
  // The data starts at a multiple of 64 bytes, after a newline: so the format wants it, for mapping files.
  std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': " + to_string(shape) + ", }";
  dict.append(63 - (magic.size() + 4 + dict.size()) % 64, ' ').append(1, '\n');
  const auto dict_size = static_cast<std::uint16_t>(dict.size());  // 64 dimensions take less than 2 kB

  write_file(path, [&](std::ostream& file) {
    file << magic << '\1' << '\0';
    file.write(reinterpret_cast<const char*>(&dict_size), sizeof(dict_size));
    file << dict;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size_bytes()));
  });
}

}  // namespace flashladder
