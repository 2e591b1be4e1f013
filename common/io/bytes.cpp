#include "common/io/bytes.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "common/attention/workspace.hpp"

namespace flashladder {

void require_memory(std::uint64_t bytes, const std::string& what) {
  if (bytes <= static_cast<std::uint64_t>(Workspace::available_memory())) return;
  throw Error(what + ": takes " + std::to_string((bytes >> 20) + 1) +
              " MiB of memory to read, more than is free; save a smaller part of it");
}

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const auto refuse = [&](const std::error_code& reason) {
    const bool locked = reason == std::errc::permission_denied;
    throw Error(
        "cannot read " + path.string() + ": " + reason.message() +
        (locked ? "; check its permissions, and those of the folders above it" : "; check the path"));
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) refuse(error);
  if (fs::is_directory(status)) refuse(std::make_error_code(std::errc::is_a_directory));
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error("cannot read " + path.string() +
                ": it is a pipe or a device; write what comes from it into a file, and name that");
  }
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) refuse(error);
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse({errno, std::generic_category()});
  require_memory(size, path.string());
  std::vector<std::byte> bytes(size);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    refuse(std::make_error_code(std::errc::io_error));
  return bytes;
}

}  // namespace flashladder
