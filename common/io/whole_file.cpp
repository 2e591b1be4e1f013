#include "common/io/whole_file.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <system_error>

#include "common/attention/error.hpp"

namespace flashladder {
namespace {

constexpr std::array interrupts = {SIGINT, SIGTERM, SIGHUP};
int alive = 0;
std::array<struct sigaction, interrupts.size()> actions_before;
volatile std::sig_atomic_t kept = 0;

extern "C" void keep_interrupt(int signal) {
  kept = signal;
}

/// Where the file grows until it is complete.
std::filesystem::path part_of(const std::filesystem::path& path) {
  return path.string() + "." + std::to_string(getpid()) + ".part";
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
  const std::filesystem::path part = part_of(path);
  std::error_code error;
  const auto refuse = [&](const std::string& reason) {
    std::filesystem::remove(part, error);
    throw Error("cannot write " + path.string() + ": " + reason + "; choose another path or make room");
  };
  // Renaming would put a file in the place of a device such as /dev/null.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
    refuse("it is not a regular file");
  std::ofstream file(part, std::ios::binary);
  if (file) write(file);
  file.close();
  if (!file) refuse(std::generic_category().message(errno));
  std::filesystem::rename(part, path, error);
  if (error) refuse(error.message());
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, [&](std::ostream& file) { file << text; });
}

void require_writable(const std::filesystem::path& path) {
  const Uninterrupted whole;
  const std::filesystem::path part = part_of(path);
  std::error_code error;
  const bool other = std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error);
  const bool can = !other && std::ofstream(part).is_open();
  const std::string reason =
      other ? "it is not a regular file" : std::generic_category().message(can ? 0 : errno);
  std::filesystem::remove(part, error);
  if (!can)
    throw Error("cannot write " + path.string() + ": " + reason + "; choose another path or make room");
}

}  // namespace flashladder
