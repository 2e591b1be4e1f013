#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "common/error.hpp"
#include "common/io/npy.hpp"
#include "common/io/npz.hpp"
#include "common/io/whole_file.hpp"
#include "tests/fuzz/npy_fuzz.hpp"

using namespace flashladder;
using namespace std::string_literals;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const std::filesystem::path test_data = std::filesystem::path(FLASHLADDER_SOURCE_DIR) / "tests";

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Array read_npy_bytes(const std::string& bytes) {
  return parse_npy(as_bytes(bytes), "x.npy");
}
std::map<std::string, Array> read_npz_bytes(const std::string& bytes) {
  return parse_npz(as_bytes(bytes), "x.npz");
}

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// `part` when `read` ends with an Error that says it; else what it ended with, for a failing check to
/// show.
template <class Read>
std::string error_like(const std::string& part, Read read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.find(part) != message.npos ? part : message;
  }
  return "no error";
}

/// The bytes of some numbers, little-endian.
template <class T>
std::string bytes_of(std::initializer_list<T> numbers) {
  return {reinterpret_cast<const char*>(numbers.begin()), numbers.size() * sizeof(T)};
}
std::string u16(std::size_t number) {
  return bytes_of({static_cast<std::uint16_t>(number)});
}
std::string u32(std::size_t number) {
  return bytes_of({static_cast<std::uint32_t>(number)});
}

/// An .npy file with this text as its header.
std::string npy_with_header(const std::string& header, const std::string& data, int major = 1) {
  return "\x93NUMPY"s + static_cast<char>(major) + '\0' +
         (major == 1 ? u16(header.size()) : u32(header.size())) + header + data;
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                int major = 1) {
  return npy_with_header("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n",
                         data, major);
}

/// Two numbers, 1 and 2, fp32.
std::string good_npy() {
  return npy("'<f4'", "(2,)", bytes_of({1.0f, 2.0f}));
}

/// One member of an archive; whatever is not given is made to fit `data`.
struct ZipMember {
  std::string name;
  std::string data;
  int method = 0;
  int flags = 0;
  std::string packed = data;
  std::size_t size = data.size();
  std::uint32_t crc_error = 0;
  std::size_t packed_size = packed.size();
  std::optional<std::size_t> offset = {};  // where the directory says it is; by default, where it is
};

std::uint32_t crc32_bit_by_bit(const std::string& data) {
  std::uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
  }
  return ~crc;
}

std::string zip(const std::vector<ZipMember>& members) {
  std::string archive;
  std::string directory;
  for (const ZipMember& m : members) {
    const std::string sizes =
        u32(crc32_bit_by_bit(m.data) ^ m.crc_error) + u32(m.packed_size) + u32(m.size);
    const std::string common = u16(20) + u16(m.flags) + u16(m.method) + u32(0) + sizes + u16(m.name.size());
    directory += "PK\1\2" + u16(20) + common + u16(0) + u16(0) + u32(0) + u32(0) +
                 u32(m.offset.value_or(archive.size())) + m.name;
    archive += "PK\3\4" + common + u16(0) + m.name + m.packed;
  }
  return archive + directory + "PK\5\6" + u32(0) + u16(members.size()) + u16(members.size()) +
         u32(directory.size()) + u32(archive.size()) + u16(0);
}

/// `data` as one deflate block that holds it as it is.
std::string deflate(const std::string& data) {
  return "\1" + u16(data.size()) + u16(~data.size()) + data;
}

std::string deflated_npz() {
  return zip({{.name = "q.npy", .data = good_npy(), .method = 8, .packed = deflate(good_npy())}});
}

/// Whether the library was built with zlib: without it, it says so.
bool has_zlib() {
  const std::string message =
      "x.npz: q: is compressed, which this build cannot read; save it with np.savez instead of "
      "np.savez_compressed, or install zlib (zlib1g-dev) and build again";
  return error_like(message, [] { read_npz_bytes(deflated_npz()); }) != message;
}

/// A folder for the files of one test.
class Folder {
 public:
  Folder() { std::filesystem::create_directory(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  auto files() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("flashladder_io_test." + std::to_string(getpid()));
};

}  // namespace

TEST_CASE("npy: fp32 in formats 1.0, 2.0 and 3.0", "[io]") {
  for (const int major : {1, 2, 3}) {
    const Array array =
        read_npy_bytes(npy("'<f4'", "(2, 3)", bytes_of({1.f, 2.f, 3.f, 4.f, -0.f, 1e-45f}), major));
    CHECK(array.dtype == "<f4");
    CHECK(array.shape == std::vector<std::int64_t>{2, 3});
    CHECK(array.values == std::vector<float>{1, 2, 3, 4, 0, 1e-45f});
    CHECK(std::signbit(array.values[4]));
  }
}

TEST_CASE("npy: a single number, and an empty array", "[io]") {
  const Array number = read_npy_bytes(npy("'<f4'", "()", bytes_of({7.0f})));
  CHECK(number.shape.empty());
  CHECK(number.values == std::vector<float>{7});
  const Array empty = read_npy_bytes(npy("'<f4'", "(3, 0)", ""));
  CHECK(empty.shape == std::vector<std::int64_t>{3, 0});
  CHECK(empty.values.empty());
}

TEST_CASE("npy: every fp16 number is widened exactly", "[io]") {
  std::string data;
  for (std::size_t bits = 0; bits < 65536; ++bits) data += u16(bits);
  const Array array = read_npy_bytes(npy("'<f2'", "(65536,)", data));
  std::size_t wrong = 0;
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    const float magnitude = exponent == 31 ? (fraction == 0 ? infinity : NAN)
                            : exponent == 0
                                ? std::ldexp(static_cast<float>(fraction), -24)
                                : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    const float value = array.values[static_cast<std::size_t>(bits)];
    const bool same = std::isnan(magnitude) ? std::isnan(value) : std::abs(value) == magnitude;
    wrong += !same || std::signbit(value) != (bits >= 32768);
  }
  CHECK(wrong == 0);
}

TEST_CASE("npy: fp64 is rounded to fp32", "[io]") {
  const float most = std::numeric_limits<float>::max();
  const double rounds_up_to_infinity = 0x1.ffffffp127;  // halfway between the largest fp32 number and 2^128
  const double rounds_down_to_most = std::nextafter(rounds_up_to_infinity, 0);
  const double inf = infinity;
  const Array array =
      read_npy_bytes(npy("'<f8'", "(5,)", bytes_of({0.1, rounds_down_to_most, -inf, 1e-300, double{NAN}})));
  CHECK(array.values[0] == 0.1f);
  CHECK(array.values[1] == most);
  CHECK(array.values[2] == -infinity);
  CHECK(array.values[3] == 0);
  CHECK(std::isnan(array.values[4]));

  const std::string message =
      "x.npy: element 2 (in C order, from 0) is too large for fp32; scale the values down";
  for (const double large : {rounds_up_to_infinity, -1e300}) {
    const std::string bytes = npy("'<f8'", "(2, 2)", bytes_of({1.0, inf, large, 1.0}));
    CHECK(error_like(message, [&] { read_npy_bytes(bytes); }) == message);
  }
}

TEST_CASE("npy: the header's keys in any order, with any whitespace and commas", "[io]") {
  for (const char* header : {"{'descr':'<f4','fortran_order':False,'shape':(2,)}",
                             "{\"shape\" : ( 2 , ) , \"fortran_order\" :False, \"descr\" : '<f4' , }   \n",
                             "\n{\t'fortran_order': False,\r\n 'descr': '<f4', 'shape': (1, 2)\n}\n"}) {
    CHECK(read_npy_bytes(npy_with_header(header, bytes_of({1.f, 2.f}))).values == std::vector<float>{1, 2});
  }
}

TEST_CASE("npy: what is not read is refused with a sentence on why and what to do", "[io]") {
  const auto with_dtype = [](const std::string& descr) {
    return npy(descr, "(2,)", std::string(64, '\0'));
  };
  const auto with_header = [](const std::string& header) {
    return npy_with_header(header, bytes_of({1.f, 2.f}));
  };
  const auto with_shape = [](const std::string& shape) {
    return npy("'<f4'", shape, bytes_of({1.f, 2.f}));
  };
  const std::string save =
      ", not little-endian fp16, fp32 or fp64; save np.ascontiguousarray(x).astype(np.float32)";
  const std::string save_again = "; save it or copy it again";
  const std::string not_npy = "x.npy: is not an .npy file; save it with np.save";
  const std::string cut_header = "x.npy: the .npy header is cut short or damaged" + save_again;
  const std::string bad_header =
      "x.npy: the .npy header is not the dict of 'descr', 'fortran_order' and 'shape' that NumPy writes; "
      "save it "
      "again with np.save";
  const std::string bad_shape = "x.npy: declares a shape that no array can have";
  const std::string bad_version = ", not 1.0, 2.0 or 3.0; save it again with np.save";
  const std::string good = good_npy();
  std::string other_minor = good;
  other_minor[7] = 1;

  const struct {
    std::string what, bytes, message;
  } cases[] = {
      {"empty file", "", not_npy},
      {"text file", "0.5 0.25 0.125", not_npy},
      {"cut in the magic", good.substr(0, 5), not_npy},
      {"cut in the version", good.substr(0, 7), cut_header},
      {"cut in the header's size", good.substr(0, 9), cut_header},
      {"cut in the header", good.substr(0, 40), cut_header},
      {"header larger than the file", "\x93NUMPY\2\0\xff\xff\xff\xff{}"s, cut_header},
      {"version 4.0", npy("'<f4'", "(2,)", "", 4), "x.npy: has .npy format version 4.0" + bad_version},
      {"version 1.1", other_minor, "x.npy: has .npy format version 1.1" + bad_version},
      {"cut in the data", good.substr(0, good.size() - 1),
       "x.npy: the data is cut short, shape (2,) of dtype <f4 takes 8 bytes and 7 are there" + save_again},
      {"extra bytes", good + '\0',
       "x.npy: extra bytes follow the data, shape (2,) of dtype <f4 takes 8 bytes and 9 are there" +
           save_again},
      {"extra bytes after nothing", npy("'<f8'", "(0, 5)", "12345678"),
       "x.npy: extra bytes follow the data"},

      {"huge shape", with_shape("(1099511627776, 4)"),
       "x.npy: the data is cut short, shape (1099511627776, 4) of dtype <f4 takes 17592186044416 bytes and "
       "8 are"},
      {"shape of 2^64 bytes", with_shape("(4611686018427387904,)"), bad_shape},
      {"shape of 2^64 elements", with_shape("(4294967296, 4294967296)"), bad_shape},
      {"shape beyond 64 bits", with_shape("(2, 18446744073709551617)"), bad_shape},
      {"shape beyond 64 bits, but empty", with_shape("(0, 99999999999999999999)"), bad_shape},
      {"negative shape", with_shape("(-1, -2)"), bad_shape},
      {"65 dimensions",
       with_shape("(" +
                  [] {
                    std::string ones;
                    for (int i = 0; i < 65; ++i) ones += "1, ";
                    return ones;
                  }() +
                  ")"),
       bad_shape},

      {"bfloat16", with_dtype("'<V2'"),
       "x.npy: holds raw 2-byte values (dtype <V2), which is how bfloat16 of ml_dtypes gets saved; save "
       "np.ascontiguousarray(x).astype(np.float32) and use --dtype bf16"},
      {"bfloat16, older", with_dtype("'|V2'"), "bfloat16"},
      {"raw bytes", with_dtype("'|V1'"), "x.npy: holds raw bytes (dtype |V1)" + save},
      {"objects", with_dtype("'|O'"), "x.npy: holds Python objects (dtype |O)" + save},
      {"integers", with_dtype("'<i8'"), "x.npy: holds integers (dtype <i8)" + save},
      {"unsigned integers", with_dtype("'|u1'"), "x.npy: holds integers (dtype |u1)" + save},
      {"booleans", with_dtype("'|b1'"), "x.npy: holds booleans (dtype |b1)" + save},
      {"complex", with_dtype("'<c8'"),
       "x.npy: holds complex numbers (dtype <c8), not little-endian fp16, fp32 or fp64; save "
       "np.ascontiguousarray(x.real).astype(np.float32)"},
      {"structured", with_dtype("[('a', '<f4'), ('b', '<f4')]"),
       "x.npy: holds structured records (dtype [...]), not little-endian fp16, fp32 or fp64; save "
       "np.ascontiguousarray(x[\"field\"]).astype(np.float32)"},
      {"text", with_dtype("'<U3'"), "x.npy: holds text (dtype <U3)" + save},
      {"dates", with_dtype("'<M8[s]'"), "x.npy: holds something else (dtype <M8[s])" + save},
      {"big-endian", with_dtype("'>f4'"),
       "x.npy: holds floats of another size or byte order (dtype >f4)" + save},
      {"long double", with_dtype("'<f16'"),
       "x.npy: holds floats of another size or byte order (dtype <f16)" + save},
      {"no dtype", with_dtype("''"), "x.npy: holds something else (dtype )" + save},
      {"Fortran order", with_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }"),
       "x.npy: is in Fortran order; save np.ascontiguousarray(x).astype(np.float32)"},

      {"no dict", with_header("'<f4', False, (2,)"), bad_header},
      {"empty header", with_header(""), bad_header},
      {"missing key", with_header("{'descr': '<f4', 'shape': (2,), }"), bad_header},
      {"unknown key", with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}"),
       bad_header},
      {"key twice", with_header("{'shape': (2,), 'fortran_order': False, 'shape': (2,), 'descr': '<f4'}"),
       bad_header},
      {"another key twice",
       with_header("{'descr': '<f4', 'descr': '<f2', 'fortran_order': False, 'shape': (2,)}"), bad_header},
      {"dict not closed", with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), "),
       bad_header},
      {"text after the dict", with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x"),
       bad_header},
      {"order is no bool", with_header("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}"), bad_header},
      {"shape is a list", with_shape("[2]"), bad_header},
      {"shape of text", with_shape("('2',)"), bad_header},
      {"shape not closed", with_shape("(2"), bad_header},
      {"shape with two commas", with_shape("(2,,)"), bad_header},
      {"dtype is no text", with_dtype("4"), bad_header},
      {"text not closed", with_header("{'descr"), bad_header},
  };
  for (const auto& bad : cases) {
    DYNAMIC_SECTION(bad.what) {
      CHECK(error_like(bad.message, [&] { read_npy_bytes(bad.bytes); }) == bad.message);
    }
  }
}

TEST_CASE("npy and npz: no part of a file passes for the whole", "[io]") {
  const std::string whole_npy = good_npy();
  for (std::size_t size = 0; size < whole_npy.size(); ++size) {
    CHECK_THROWS_AS(read_npy_bytes(whole_npy.substr(0, size)), Error);
  }
  const std::string whole_npz = file_bytes(test_data / "data/stored.npz");
  for (std::size_t size = 0; size < whole_npz.size(); ++size) {
    CHECK_THROWS_AS(read_npz_bytes(whole_npz.substr(0, size)), Error);
  }
}

TEST_CASE("npy: what is written is read again", "[io]") {
  const Folder folder;
  const std::filesystem::path path = folder / "x.npy";
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {}, {5}, {2, 0}, {2, 3, 4}, std::vector<std::int64_t>(64, 1)}) {
    DYNAMIC_SECTION(to_string(shape)) {
      std::size_t count = 1;
      for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = 0.1f * static_cast<float>(i) - 1;
      if (count > 2) values[1] = -infinity;

      write_npy(path, {1}, std::array{0.0f});  // to be replaced
      write_npy(path, shape, values);
      const Array array = read_npy(path);
      CHECK(array.dtype == "<f4");
      CHECK(array.shape == shape);
      CHECK(array.values == values);
      CHECK((std::filesystem::file_size(path) - 4 * count) % 64 == 0);
      CHECK(folder.files() == 1);
    }
  }
}

TEST_CASE("npy: the bytes written are NumPy's own", "[io]") {
  const Folder folder;
  write_npy(folder / "q.npy", {2, 3, 4}, read_npz(test_data / "data/stored.npz").at("q").values);
  const std::string by_numpy = file_bytes(test_data / "data/stored.npz");
  CHECK(by_numpy.find(file_bytes(folder / "q.npy")) != std::string::npos);
}

TEST_CASE("npy and npz: a file that cannot be read or written says why", "[io]") {
  const Folder folder;
  const auto check = [](const std::string& message, auto action) {
    CHECK(error_like(message, action) == message);
  };
  const std::string missing = (folder / "missing").string();
  const std::string directory = (folder / "").string();
  const std::string file = (folder / "file").string();
  write_npy(file, {}, std::array{1.0f});

  check("cannot read " + missing + ": No such file or directory; check the path",
        [&] { read_npy(missing); });
  check("cannot read " + missing + ": No such file or directory; check the path",
        [&] { read_npz(missing); });
  check("cannot read " + directory + ": Is a directory", [&] { read_npy(directory); });
  check("cannot read " + file + "/x: Not a directory", [&] { read_npy(file + "/x"); });
  check(file + ": is not an .npz file", [&] { read_npz(file); });

  const std::array value = {1.0f};
  check("cannot write " + missing + "/x: No such file or directory; choose another path",
        [&] { write_npy(missing + "/x", {}, value); });
  check("cannot write " + directory + ": it is a folder", [&] { write_npy(directory, {}, value); });
  const std::string pipe = (folder / "pipe").string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  check("cannot write " + pipe + ": it is a pipe or a device", [&] { write_npy(pipe, {}, value); });
  CHECK_THROWS_AS(write_npy(file, {2}, value), std::logic_error);
  CHECK_THROWS_AS(write_npy(file, {-1, -1}, value), std::logic_error);
  CHECK(read_npy(file).values == std::vector<float>{1});
  for (const std::string& other : {pipe, "/dev/zero"s, "/dev/null"s}) {
    check("cannot read " + other + ": it is a pipe or a device; write", [&] { read_npy(other); });
  }
  CHECK(folder.files() == 2);
}

TEST_CASE("npy: a disk that is full leaves the old file, and nothing else", "[io]") {
  const Folder folder;
  const std::filesystem::path path = folder / "x.npy";
  write_npy(path, {}, std::array{1.0f});

  // A limit on the size of files stands in for the disk. A write past it fails once its signal is ignored.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  const rlimit limit = {1024, old_limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string message =
      "cannot write " + path.string() + ": File too large; choose another path or make room";
  const std::string error = error_like(message, [&] { write_npy(path, {1000}, std::vector<float>(1000)); });
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);

  CHECK(error == message);
  CHECK(read_npy(path).values == std::vector<float>{1});
  CHECK(folder.files() == 1);
}

TEST_CASE("file: an interrupt in its midst leaves the whole file or the old one", "[io]") {
  const Folder folder;
  const std::filesystem::path path = folder / "x.txt";
  write_file(path, "old");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::signal(signal, SIG_DFL);
      write_file(path, [&](std::ostream& file) {
        file << "new ";
        file.flush();
        kill(getpid(), signal);
        file << signal;
      });
      _exit(0);  // the interrupt was lost
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
    CHECK(file_bytes(path) == "new " + std::to_string(signal));
    CHECK(folder.files() == 1);
  }
}

TEST_CASE("file: one that cannot be written leaves nothing", "[io]") {
  const Folder folder;
  const std::filesystem::path path = folder / "x.txt";
  write_file(path, "old");
  const auto fails = [](std::ostream& file) {
    file << "new";
    throw Error("why");
  };
  CHECK_THROWS_AS(write_file(path, fails), Error);
  CHECK(file_bytes(path) == "old");
  for (const std::string& wrong :
       {(folder / "no" / "x").string(), path.parent_path().string(), "/dev/null"s}) {
    CHECK_THROWS_AS(write_file(wrong, "x"), Error);
    CHECK_THROWS_AS(require_writable(wrong), Error);
  }
  // Where stdout is a file, /dev/stdout is a link, which a file must not take the place of.
  const std::filesystem::path link = folder / "stdout";
  std::filesystem::create_symlink("/proc/self/fd/1", link);
  const int before = dup(STDOUT_FILENO), to = open(path.c_str(), O_WRONLY);
  dup2(to, STDOUT_FILENO);
  for (const std::filesystem::path& printed : {link, path}) {
    CHECK_THROWS_AS(write_file(printed, "x"), Error);
    CHECK_THROWS_AS(require_writable(printed), Error);
  }
  dup2(before, STDOUT_FILENO);
  close(before), close(to);
  CHECK(std::filesystem::is_symlink(link));
  std::filesystem::remove(link);
  CHECK_NOTHROW(require_writable(path));
  CHECK_NOTHROW(require_writable(folder / "y.txt"));
  CHECK(file_bytes(path) == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("npz: an array that is larger than its header says is not unpacked", "[io]") {
  if (!has_zlib()) return;
  // A header that declares two floats, before what should be a MiB and is cut off after the first blocks:
  // who unpacks more than the beginning finds that the data is damaged.
  const std::string block = good_npy() + std::string(60000 - good_npy().size(), '\0');
  std::string packed;
  for (int blocks = 0; blocks < 2; ++blocks)
    packed += "\0"s + u16(block.size()) + u16(~block.size()) + block;
  const std::string message = "x.npz: q: extra bytes follow the data, shape (2,)";
  const auto archive = [&](const std::string& name) {
    return zip({{.name = name, .data = block, .method = 8, .packed = packed, .size = 1 << 20}});
  };
  CHECK(error_like(message, [&] { read_npz_bytes(archive("q.npy")); }) == message);
  // What is not wanted is not unpacked at all.
  CHECK(parse_npz(as_bytes(archive("k.npy")), "x.npz", {"q"}).count("k") == 1);
}

TEST_CASE("npz: what NumPy writes", "[io]") {
  std::vector<std::string> files = {"stored.npz"};
  if (has_zlib()) files.push_back("compressed.npz");
  for (const std::string& file : files) {
    DYNAMIC_SECTION(file) {
      const auto arrays = read_npz(test_data / "data" / file);
      REQUIRE(arrays.size() == 3);
      const Array& q = arrays.at("q");
      CHECK(q.dtype == "<f4");
      CHECK(q.shape == std::vector<std::int64_t>{2, 3, 4});
      REQUIRE(q.values.size() == 24);
      for (std::size_t i = 0; i < 24; ++i) CHECK(q.values[i] == static_cast<float>(i) / 2);

      const Array& k = arrays.at("k");
      CHECK(k.dtype == "<f2");
      CHECK(k.shape == std::vector<std::int64_t>{9});
      REQUIRE(k.values.size() == 9);
      const std::vector<float> numbers(k.values.begin(), k.values.end() - 1);
      CHECK(numbers == std::vector<float>{0, 0, 1, -1.5f, 65504, 0x1p-14f, 0x1p-24f, infinity});
      CHECK(std::signbit(k.values[1]));
      CHECK(std::isnan(k.values[8]));

      const Array& scale = arrays.at("scale");
      CHECK(scale.dtype == "<f8");
      CHECK(scale.shape.empty());
      CHECK(scale.values == std::vector<float>{0.1f});
    }
  }
}

TEST_CASE("npz: a deflated member, where the build has zlib", "[io]") {
  if (has_zlib()) {
    CHECK(read_npz_bytes(deflated_npz()).at("q").values == std::vector<float>{1, 2});
  } else {
    CHECK_THROWS_AS(read_npz_bytes(deflated_npz()), Error);
  }
}

TEST_CASE("npz: no members, names with folders, a comment", "[io]") {
  CHECK(read_npz_bytes(zip({})).empty());
  const std::string bytes =
      zip({{.name = "layer0/q.npy", .data = good_npy()}, {.name = ".npy", .data = good_npy()}});
  CHECK(read_npz_bytes(bytes).at("layer0/q").values == std::vector<float>{1, 2});
  CHECK(read_npz_bytes(bytes).at("").values == std::vector<float>{1, 2});
  const std::string comment = "PK\5\6 is no record here";
  const std::string commented = bytes.substr(0, bytes.size() - 2) + u16(comment.size()) + comment;
  CHECK(read_npz_bytes(commented).size() == 2);
}

TEST_CASE("npz: what is not read is refused with a sentence on why and what to do", "[io]") {
  const std::string good = good_npy();
  const std::string save_again = "; save it or copy it again";
  const std::string no_npz =
      "x.npz: is not an .npz file, or is cut short; save it with np.savez or copy it again";
  const std::string bad_crc = "x.npz: q: the data does not match its CRC-32 and size" + save_again;
  const std::string bad_member = "x.npz: q: the zip member is cut short or damaged" + save_again;
  const std::string zip64 =
      "x.npz: is a zip64 archive (2 GiB or more), which is not read here; save each array to its own file "
      "with "
      "np.save";
  const std::string archive = zip({{.name = "q.npy", .data = good}});
  const auto replaced = [&](const std::string& signature, std::size_t offset, const std::string& bytes) {
    return std::string(archive).replace(archive.rfind(signature) + offset, bytes.size(), bytes);
  };

  struct Case {
    std::string what, bytes, message;
  };
  std::vector<Case> cases = {
      {"empty file", "", no_npz},
      {"an .npy", good, no_npz},
      {"cut short", archive.substr(0, archive.size() - 1), no_npz},
      {"extra bytes", archive + "x", no_npz},
      {"directory outside the file", replaced("PK\5\6", 16, u32(1 << 20)),
       "x.npz: the zip directory is cut short or damaged" + save_again},
      {"directory too large", replaced("PK\5\6", 12, u32(1 << 20)),
       "x.npz: the zip directory is cut short or damaged" + save_again},
      {"directory elsewhere", replaced("PK\5\6", 16, u32(0)),
       "x.npz: the zip directory is cut short or damaged" + save_again},
      {"zip64 archive", replaced("PK\5\6", 16, u32(0xffffffff)), zip64},
      {"zip64 member", replaced("PK\1\2", 24, u32(0xffffffff)), zip64},

      {"member is no .npy", zip({{.name = "notes.txt", .data = "hello"}}),
       "x.npz: notes.txt: is not an .npy file; save arrays only, with np.savez"},
      {"encrypted", zip({{.name = "q.npy", .data = good, .flags = 1}}),
       "x.npz: q: is encrypted; save it with np.savez"},
      {"bzip2", zip({{.name = "q.npy", .data = good, .method = 12}}),
       "x.npz: q: is packed by zip method 12, not stored or deflated; save it with np.savez"},
      {"wrong CRC", zip({{.name = "q.npy", .data = good, .crc_error = 1}}), bad_crc},
      {"wrong size", zip({{.name = "q.npy", .data = good, .size = good.size() + 1}}), bad_crc},
      {"member outside the file", zip({{.name = "q.npy", .data = good, .offset = 1 << 20}}), bad_member},
      {"member too large", zip({{.name = "q.npy", .data = good, .packed_size = good.size() + 1}}),
       bad_member},
      {"member not where it should be", zip({{.name = "q.npy", .data = good, .offset = 1}}), bad_member},
      {"members overlap",
       zip({{.name = "q.npy", .data = good}, {.name = "k.npy", .data = good, .offset = 0}}),
       "x.npz: k: overlaps the member before it; save it again with np.savez"},
      {"a name twice", zip({{.name = "q.npy", .data = good}, {.name = "q.npy", .data = good}}),
       "x.npz: q: is there twice; save each array under its own name"},

      {"member cut short", zip({{.name = "q.npy", .data = good.substr(0, good.size() - 1)}}),
       "x.npz: q: the data is cut short, shape (2,) of dtype <f4 takes 8 bytes and 7 are there" +
           save_again},
      {"member of integers",
       zip({{.name = "k.npy", .data = good}, {.name = "q.npy", .data = npy("'<i4'", "()", "1234")}}),
       "x.npz: q: holds integers (dtype <i4)"},
  };
  if (has_zlib()) {
    const std::string damaged = "x.npz: q: the compressed data is damaged" + save_again;
    const std::string packed = deflate(good);
    const auto with_size = [&](std::size_t size) {
      return zip({{.name = "q.npy", .data = good, .method = 8, .packed = packed, .size = size}});
    };
    const auto with_packed = [&](const std::string& other) {
      return zip({{.name = "q.npy", .data = good, .method = 8, .packed = other}});
    };
    cases.insert(
        cases.end(),
        {{"deflated to nothing", with_packed(""), damaged},
         {"deflated, cut short", with_packed(packed.substr(0, packed.size() - 1)), damaged},
         {"deflated, damaged", with_packed("\7" + packed.substr(1)), damaged},
         {"deflated, fewer bytes declared", with_size(good.size() - 1), damaged},
         {"deflated, more bytes declared", with_size(good.size() + 1), damaged},
         {"deflated, no bytes declared", with_size(0), damaged},
         {"deflated, 4 GiB declared", with_size(0xfffffffe), damaged},
         {"deflated, wrong CRC",
          zip({{.name = "q.npy", .data = good, .method = 8, .packed = packed, .crc_error = 1u << 31}}),
          bad_crc}});
  }
  for (const Case& bad : cases) {
    DYNAMIC_SECTION(bad.what) {
      CHECK(error_like(bad.message, [&] { read_npz_bytes(bad.bytes); }) == bad.message);
    }
  }
}

TEST_CASE("npy and npz: each input of the fuzzer's corpus is refused or read whole", "[io]") {
  std::size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(test_data / "fuzz/corpus")) {
    const std::string bytes = file_bytes(file.path());
    read_any_bytes(as_bytes(bytes));
    ++files;
  }
  CHECK(files > 10);
}
