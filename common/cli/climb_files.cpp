#include "common/cli/climb_files.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/error.hpp"
#include "common/io/terminal.hpp"
#include "common/io/whole_file.hpp"

namespace flashladder {

namespace fs = std::filesystem;

void prepare_output(const fs::path& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) {
    throw Error(fmt::format("cannot write into the folder {} ({}): name another with --out", out.string(),
                            error.message()));
  }
  for (const char* name : {"climb.json", "report.html"}) {
    if (fs::is_directory(out / name)) {
      throw Error(fmt::format("{} is a folder: remove it, or name another folder with --out",
                              (out / name).string()));
    }
    try {
      require_writable(out / name);
    } catch (const Error& why) {
      throw Error(fmt::format("cannot write into the folder {} ({}): name another with --out", out.string(),
                              why.what()));
    }
    if (fs::exists(out / name)) say("{} exists and will be replaced\n", (out / name).string());
  }
}

int draw_report(const fs::path& json, const fs::path& html) {
  std::error_code missing;
  const fs::file_time_type before = fs::last_write_time(html, missing);
  const char* chosen = std::getenv("FLASHLADDER_PYTHON");
  // A module of the repository, from wherever the caller is, whose own modules are not taken for Python's.
  setenv("PYTHONPATH", FLASHLADDER_SOURCE_DIR, 1);
  setenv("PYTHONSAFEPATH", "yes", 1);
  std::string arguments[] = {chosen != nullptr ? chosen : "python3",
                             "-m",
                             "bench.report.climb",
                             json.string(),
                             "--out",
                             html.string()};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // Ctrl-C goes to Python too, which would show where it was: it is told to end by another signal.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  posix_spawnattr_setsigmask(&how, &blocked);
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK);
  pid_t child;
  const int failed = posix_spawnp(&child, argv[0], nullptr, &how, argv.data(), environ);
  posix_spawnattr_destroy(&how);
  if (failed != 0) return -1;
  int status = 0;
  for (bool told = false;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended == -1) return -1;
    if (Uninterrupted::interrupted() && !told) {
      told = true;
      kill(child, SIGTERM);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // It may have been interrupted after the new report took its place.
  if (fs::last_write_time(html, missing) != before) return 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace flashladder
