#include "common/io/whole_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <system_error>

#include "common/error.hpp"

namespace flashladder {
namespace {

constexpr std::array interrupts = {SIGINT, SIGTERM, SIGHUP};
std::atomic<int> alive = 0;
std::array<struct sigaction, interrupts.size()> actions_before;
volatile std::sig_atomic_t kept = 0;

extern "C" void keep_interrupt(int signal) {
  kept = signal;
}

/// Where the file grows until it is complete.
std::filesystem::path part_of(const std::filesystem::path& path) {
  return path.string() + "." + std::to_string(getpid()) + ".part";
}

/// Whether a stream of this program is at `path`: /dev/stdout, where that is a file.
bool has_stream(const std::filesystem::path& path) {
  struct stat there, stream;
  if (stat(path.c_str(), &there) != 0) return false;
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fstat(number, &stream) == 0 && stream.st_dev == there.st_dev && stream.st_ino == there.st_ino)
      return true;
  }
  return false;
}

/// What is at `path` that no file may take the place of: renaming would, of a device such as /dev/null, of
/// the link /dev/stdout, or of a file that what is printed goes to.
std::string in_the_way(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return "it is a folder";
  const bool other = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  if (other) return "it is a pipe or a device";
  return has_stream(path) ? "stdin, stdout or stderr is there" : "";
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw Error("cannot write " + path.string() + ": " + reason + "; choose another path or make room");
}

}  // namespace

Uninterrupted::Uninterrupted() {
  if (alive++ > 0) return;
  kept = 0;
  for (std::size_t i = 0; i < interrupts.size(); ++i) {
    sigaction(interrupts[i], nullptr, &actions_before[i]);
    if (actions_before[i].sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = keep_interrupt;
    action.sa_flags = SA_RESTART;
    sigaction(interrupts[i], &action, nullptr);
  }
}

Uninterrupted::~Uninterrupted() {
  if (--alive > 0) return;
  for (std::size_t i = 0; i < interrupts.size(); ++i) sigaction(interrupts[i], &actions_before[i], nullptr);
  if (kept != 0) std::raise(kept);
}

bool Uninterrupted::interrupted() {
  return kept != 0;
}

void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write) {
  const Uninterrupted whole;
  if (const std::string what = in_the_way(path); !what.empty()) refuse(path, what);
  const std::filesystem::path part = part_of(path);
  std::ofstream file(part, std::ios::binary);
  if (file) write(file);
  file.close();
  std::error_code error;
  if (!file)
    error = {errno != 0 ? errno : EIO, std::generic_category()};
  else
    std::filesystem::rename(part, path, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  refuse(path, error.message());
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, [&](std::ostream& file) { file << text; });
}

void require_writable(const std::filesystem::path& path) {
  const Uninterrupted whole;
  if (const std::string what = in_the_way(path); !what.empty()) refuse(path, what);
  const std::filesystem::path part = part_of(path);
  if (!std::ofstream(part)) refuse(path, std::generic_category().message(errno));
  std::error_code error;
  std::filesystem::remove(part, error);
}

}  // namespace flashladder
