#include "common/io/npz.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#ifdef FLASHLADDER_HAS_ZLIB
#define ZLIB_CONST
#include <zlib.h>
#endif

#include "common/io/bytes.hpp"

// Numbers such as 4.3.16 are sections of the ZIP format's description, PKWARE's APPNOTE.TXT.
namespace flashladder {
namespace {

/// What the directory says of one member.
struct Member {
  std::uint16_t flags;
  std::uint16_t method;
  std::uint32_t crc;
  std::uint32_t packed_size;
  std::uint32_t size;
  std::uint32_t offset;  // of the member's own header
  std::string name;
};

struct Directory {
  std::vector<Member> members;  // in the order in which they lie in the archive
  std::uint32_t offset;
};

/// The record that ends an archive (4.3.16): 22 bytes, then only a comment of at most 65535 bytes.
ByteReader find_end_record(std::span<const std::byte> bytes, const std::string& name) {
  for (std::size_t size = 22; size <= std::min<std::size_t>(bytes.size(), 22 + 65535); ++size) {
    ByteReader record(bytes.last(size), name);
    const auto signature = record.number<std::uint32_t>();
    record.take(16);
    const auto comment_size = record.number<std::uint16_t>();
    if (signature == 0x06054b50 && comment_size == record.left()) return {bytes.last(size), name};
  }
  throw Error(name + ": is not an .npz file, or is cut short; save it with np.savez or copy it again");
}

Member read_member(ByteReader& directory) {  // 4.3.12
  Member member;
  directory.expect(0x02014b50);
  directory.take(4);  // versions
  member.flags = directory.number<std::uint16_t>();
  member.method = directory.number<std::uint16_t>();
  directory.take(4);  // time
  member.crc = directory.number<std::uint32_t>();
  member.packed_size = directory.number<std::uint32_t>();
  member.size = directory.number<std::uint32_t>();
  const auto name_size = directory.number<std::uint16_t>();
  const auto extra_size = directory.number<std::uint16_t>();
  const auto comment_size = directory.number<std::uint16_t>();
  directory.take(8);  // disk, attributes
  member.offset = directory.number<std::uint32_t>();
  member.name = directory.text(name_size);
  directory.take(std::uint64_t{extra_size} + comment_size);
  return member;
}

Directory read_directory(std::span<const std::byte> bytes, const std::string& name) {
  ByteReader end_record = find_end_record(bytes, name);
  end_record.take(12);  // signature, disks, counts
  const auto size = end_record.number<std::uint32_t>();
  const auto offset = end_record.number<std::uint32_t>();
  constexpr std::uint32_t in_zip64 = 0xffffffff;  // stands where a number has no room
  const Error too_large(name + ": is a zip64 archive (2 GiB or more), which is not read here;" +
                        " save each array to its own file with np.save");
  if (offset == in_zip64) throw too_large;

  const std::string where = name + ": the zip directory";
  ByteReader archive(bytes, where);
  archive.take(offset);
  ByteReader reader(archive.take(size), where);
  Directory directory{{}, offset};
  while (reader.left() > 0) {
    const Member& member = directory.members.emplace_back(read_member(reader));
    if (std::max({member.packed_size, member.size, member.offset}) == in_zip64) throw too_large;
  }
  std::ranges::sort(directory.members, {}, &Member::offset);
  return directory;
}

/// Own code, as stored members are checked in a build without zlib too.
std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      entries[i] = i;
      for (int bit = 0; bit < 8; ++bit) entries[i] = entries[i] >> 1 ^ (entries[i] & 1u) * 0xedb88320u;
    }
    return entries;
  }();
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

#ifdef FLASHLADDER_HAS_ZLIB
/// The `size` bytes that were deflated to `packed`.
std::vector<std::byte> inflate_member(std::span<const std::byte> packed, std::uint32_t size,
                                      const std::string& where) {
  const Error damaged(where + ": the compressed data is damaged; save it or copy it again");
  // Deflate makes at most 258 bytes of two bits: no memory is taken for a size beyond that.
  if (size / 1032 > packed.size()) throw damaged;
  // An archive of a few bytes may hold gigabytes. The header is near the start, and says how many there
  // should be.
  constexpr std::uint32_t start_size = 1 << 16;
  std::vector<std::byte> bytes(std::min(size, start_size));
  z_stream stream{};
  stream.next_in = reinterpret_cast<const Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  // Negative: bare deflate, without zlib's own header.
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_streamp)> end(&stream, inflateEnd);
  if (size > start_size) {
    if (inflate(&stream, Z_NO_FLUSH) != Z_OK || stream.avail_out != 0) throw damaged;
    check_npy_start(bytes, size, where);
    require_memory(3 * std::uint64_t{size}, where);  // fp16 is widened while the bytes are there
    bytes.resize(size);
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + start_size);
    stream.avail_out = size - start_size;
  }
  const int status = inflate(&stream, Z_FINISH);
  if (status != Z_STREAM_END || stream.total_out != size) throw damaged;
  return bytes;
}
#else
std::vector<std::byte> inflate_member(std::span<const std::byte>, std::uint32_t, const std::string& where) {
  throw Error(where + ": is compressed, which this build cannot read; save it with np.savez instead of " +
              "np.savez_compressed, or install zlib (zlib1g-dev) and build again");
}
#endif

/// The data of a member as it lies in the archive.
/// @param local  stands at the member's own header (4.3.7), and after its data on return
std::span<const std::byte> packed_data(const Member& member, ByteReader& local, const std::string& where) {
  if (member.flags & 1u) throw Error(where + ": is encrypted; save it with np.savez");
  local.expect(0x04034b50);
  local.take(22);  // the same as in the directory
  const auto name_size = local.number<std::uint16_t>();
  const auto extra_size = local.number<std::uint16_t>();
  local.take(std::uint64_t{name_size} + extra_size);
  return local.take(member.packed_size);
}

/// The bytes of the .npy file that a member is.
std::vector<std::byte> unpack(const Member& member, std::span<const std::byte> packed,
                              const std::string& where) {
  std::vector<std::byte> bytes;
  switch (member.method) {
    case 0:
      bytes.assign(packed.begin(), packed.end());
      break;
    case 8:
      bytes = inflate_member(packed, member.size, where);
      break;
    default:
      throw Error(where + ": is packed by zip method " + std::to_string(member.method) +
                  ", not stored or deflated; save it with np.savez");
  }
  if (bytes.size() != member.size || crc32_of(bytes) != member.crc) {
    throw Error(where + ": the data does not match its CRC-32 and size; save it or copy it again");
  }
  return bytes;
}

}  // namespace

std::map<std::string, Array> parse_npz(std::span<const std::byte> bytes, const std::string& name,
                                       const std::set<std::string>& wanted) {
  const Directory directory = read_directory(bytes, name);
  std::map<std::string, Array> arrays;
  std::uint64_t end_of_previous = 0;
  for (const Member& member : directory.members) {
    if (!member.name.ends_with(".npy")) {
      throw Error(name + ": " + member.name + ": is not an .npy file; save arrays only, with np.savez");
    }
    const std::string array = member.name.substr(0, member.name.size() - 4);
    const std::string where = name + ": " + array;
    ByteReader local(bytes.first(directory.offset), where + ": the zip member");
    local.take(member.offset);
    if (member.offset < end_of_previous) {
      throw Error(where + ": overlaps the member before it; save it again with np.savez");
    }
    const auto packed = packed_data(member, local, where);
    const auto [place, added] = arrays.emplace(array, Array{});
    if (!added) throw Error(where + ": is there twice; save each array under its own name");
    // A member that is not wanted may be of any dtype and size.
    if (wanted.empty() || wanted.contains(array))
      place->second = parse_npy(unpack(member, packed, where), where);
    end_of_previous = local.position();
  }
  return arrays;
}

std::map<std::string, Array> read_npz(const std::filesystem::path& path,
                                      const std::set<std::string>& wanted) {
  return parse_npz(read_file(path), path.string(), wanted);
}

}  // namespace flashladder
