#include "common/io/bytes.hpp"

#include <cerrno>
#include <fstream>
#include <system_error>

namespace flashladder {

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  const auto refuse = [&](const std::error_code& reason) {
    throw Error("cannot read " + path.string() + ": " + reason.message() +
                "; check the path and its permissions");
  };
  std::error_code error;
  const std::uintmax_t size =
      std::filesystem::file_size(path, error);  // an error for directories and devices
  if (error) refuse(error);
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse({errno, std::generic_category()});
  std::vector<std::byte> bytes(size);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) {
    refuse(std::make_error_code(std::errc::io_error));
  }
  return bytes;
}

}  // namespace flashladder
