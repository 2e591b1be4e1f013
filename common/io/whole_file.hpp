#pragma once
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string_view>

namespace flashladder {

/// While one lives, an interrupt (SIGINT, SIGTERM, SIGHUP) is kept, so that nothing is left half done: it
/// ends the program when the last of them is gone. Signals that are ignored stay ignored. The first and the
/// last belong to the main thread. For what takes no longer than a user waits, or asks interrupted().
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;

  /// Whether an interrupt has come meanwhile.
  static bool interrupted();
};

/// Makes a file that is complete or not there at all: it is written beside its place and moved there, and
/// nothing of it is left where that fails or is interrupted; what stood at `path` before then stays.
/// Throws Error where it cannot be written: a full disk, a folder, a device.
/// @param write  writes all of it
void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);
/// The same of a text.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Throws Error, as write_file would, where no file can be written at `path`: before anything long is run.
void require_writable(const std::filesystem::path& path);

}  // namespace flashladder
