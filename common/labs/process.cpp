#include "common/labs/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "common/io/whole_file.hpp"
#include "common/labs/program/message.hpp"

namespace flashladder::lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t most_output = 64 << 10;
constexpr std::int64_t flood = 16 << 20;
constexpr std::size_t most_reports = 256 << 20;
constexpr std::int64_t most_file_bytes = 64 << 20;
constexpr rlim_t most_processes = 4096;  // all of this user's; more than a grading needs, less than a bomb

/// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

/// A pipe, closed for other programs that are started meanwhile.
struct Pipe {
  explicit Pipe(const std::array<int, 2>& ends = make()) : read(ends[0]), write(ends[1]) {}
  static std::array<int, 2> make() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("no pipe could be made: too many files are open");
    return ends;
  }
  Descriptor read, write;
};

void limit(int resource, rlim_t soft, rlim_t hard) {
  rlimit now{};
  if (getrlimit(static_cast<decltype(RLIMIT_CPU)>(resource), &now) != 0) return;
  if (now.rlim_max != RLIM_INFINITY) {
    hard = std::min(hard, now.rlim_max);
    soft = std::min(soft, hard);
  }
  now.rlim_cur = soft;
  now.rlim_max = hard;
  setrlimit(static_cast<decltype(RLIMIT_CPU)>(resource), &now);
}

/// In the new process, before the program: only what is allowed between fork and exec.
[[noreturn]] void become(const Start& start, char* const* argv, char* const* environment, int input,
                         int output, int jobs, int reports) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Out of the way first, so that none of the numbers to come is in use.
  const int kept[] = {fcntl(input, F_DUPFD_CLOEXEC, report_fd + 1),
                      fcntl(output, F_DUPFD_CLOEXEC, report_fd + 1),
                      jobs < 0 ? -1 : fcntl(jobs, F_DUPFD_CLOEXEC, report_fd + 1),
                      reports < 0 ? -1 : fcntl(reports, F_DUPFD_CLOEXEC, report_fd + 1)};
  if (kept[0] < 0 || kept[1] < 0 || (jobs >= 0 && kept[2] < 0) || (reports >= 0 && kept[3] < 0)) _exit(126);
  dup2(kept[0], STDIN_FILENO);
  dup2(kept[1], STDOUT_FILENO);
  dup2(kept[1], STDERR_FILENO);
  if (jobs >= 0) dup2(kept[2], job_fd);
  if (reports >= 0) dup2(kept[3], report_fd);
  const Limits& limits = start.limits;
  if (limits.seconds > 0) {
    limit(RLIMIT_CPU, static_cast<rlim_t>(limits.seconds), static_cast<rlim_t>(limits.seconds) + 1);
  }
  if (limits.memory > 0) {
    limit(RLIMIT_AS, static_cast<rlim_t>(limits.memory), static_cast<rlim_t>(limits.memory));
    limit(RLIMIT_FSIZE, most_file_bytes, most_file_bytes);
    limit(RLIMIT_NPROC, most_processes, most_processes);
  }
  limit(RLIMIT_CORE, 0, 0);
  if (chdir(start.folder.c_str()) == 0) execvpe(argv[0], argv, environment);
  _exit(126);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// Moves what a descriptor has into `to`, no more than `most` bytes of it. False at its end.
bool drain(int fd, std::string& to, std::size_t most, std::int64_t& all) {
  char buffer[1 << 16];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (n == 0) return false;
  const std::size_t room = most - to.size();
  to.append(buffer, std::min(room, static_cast<std::size_t>(n)));
  all += n;
  return true;
}

/// Seconds of processor time that a process has used.
double processor_seconds(pid_t process) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Whether a program that has its time by the clock behind it is to be stopped. One that computes is left
/// to the limit of its processor time, however busy the machine is. Nor is one over that a machine with too
/// much to do has not let begin: so it has three times its time.
bool is_over(pid_t process, double passed, const Limits& limits) {
  if (limits.seconds == 0 || passed < 3 * limits.seconds) return false;
  return passed > 10 * limits.seconds ||
         (limits.must_compute && processor_seconds(process) < 0.05 * passed);
}

/// Waits for the program's end and takes what it says until then. A descendant may keep a pipe open: the
/// end of the program counts, not that of the pipe.
void listen(pid_t child, int output, int reports, const Limits& limits, Ended& ended) {
  fcntl(output, F_SETFL, O_NONBLOCK);
  if (reports >= 0) fcntl(reports, F_SETFL, O_NONBLOCK);
  const auto start = Clock::now();
  pollfd all[] = {{output, POLLIN, 0}, {reports, POLLIN, 0}};
  std::int64_t printed = 0, reported = 0;
  const auto take = [&] {
    if (all[0].fd >= 0 && !drain(output, ended.output, most_output, printed)) all[0].fd = -1;
    if (all[1].fd >= 0 && !drain(reports, ended.reports, most_reports, reported)) all[1].fd = -1;
  };
  const auto has_ended = [&] {
    siginfo_t info{};  // WNOWAIT: its number stays taken, and with it that of its group
    return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
  };
  while (!has_ended()) {
    poll(all, 2, 10);
    take();
    const double passed = std::chrono::duration<double>(Clock::now() - start).count();
    if (!ended.out_of_time) ended.out_of_time = is_over(child, passed, limits);
    ended.flooded = printed > flood;
    if (ended.out_of_time || ended.flooded || Uninterrupted::interrupted()) kill(-child, SIGKILL);
  }
  kill(-child, SIGKILL);  // whatever it has started
  rusage used{};
  wait4(child, &ended.status, 0, &used);
  for (const timeval& time : {used.ru_utime, used.ru_stime})
    ended.seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  for (std::size_t before = 0, now = 1; before != now;) {
    before = ended.output.size() + ended.reports.size();
    take();
    now = ended.output.size() + ended.reports.size();
  }
  ended.output_cut = printed > static_cast<std::int64_t>(ended.output.size());
  if (Uninterrupted::interrupted()) throw Interrupted("interrupted");
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    throw Error(fmt::format("{} is no folder that temporary files can be put in: set TMPDIR to one",
                            named != nullptr ? named : "/tmp"));
  }
  std::string name = (parent / "flashladder-lab-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw Error(fmt::format("no folder can be made in {} ({}): set TMPDIR to one that can be written to",
                            fs::path(name).parent_path().string(), std::strerror(errno)));
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Ended run_program(const Start& start) {
  Ended ended;
  std::vector<std::string> command = start.command, variables = {"LC_ALL=C", "PATH=/usr/bin:/bin"};
  for (const std::string& name : start.kept) {
    if (const char* value = std::getenv(name.c_str())) variables.push_back(name + "=" + value);
  }
  if (!start.own_environment) {
    variables.clear();
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      if (!text.starts_with("LC_") && !text.starts_with("LANG") && !text.starts_with("TMPDIR="))
        variables.emplace_back(text);
    }
    variables.emplace_back("LC_ALL=C");                      // messages are read, and shown, in English
    variables.push_back("TMPDIR=" + start.folder.string());  // what it leaves behind goes with the folder
  }
  const std::vector<char*> argv = pointers(command), environment = pointers(variables);

  Pipe output;
  Pipe reports;
  Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (input.get() < 0) throw Error("/dev/null cannot be opened: too many files are open");
  const bool has_jobs = !start.jobs.empty();
  Descriptor jobs(has_jobs ? open(start.jobs.c_str(), O_RDONLY | O_CLOEXEC) : -1);
  if (has_jobs && jobs.get() < 0) throw Error(start.jobs.string() + " cannot be read");

  const pid_t child = fork();
  if (child < 0) throw Error("no process can be started: too many run already");
  if (child == 0) {
    become(start, argv.data(), environment.data(), input.get(), output.write.get(), jobs.get(),
           has_jobs ? reports.write.get() : -1);
  }
  setpgid(child, child);  // here too, so that it is done whoever comes first
  output.write.close();
  reports.write.close();
  listen(child, output.read.get(), has_jobs ? reports.read.get() : -1, start.limits, ended);
  ended.started = !(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 126);
  return ended;
}

}  // namespace flashladder::lab
