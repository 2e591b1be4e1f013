// The main function of the program that runs a student's file: a stage whose passes are the student's.
// Started by the grader it reads jobs, runs them and sends reports. Started by hand it runs one small
// problem, for a debugger.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "common/attention/counted.hpp"
#include "common/attention/stage.hpp"
#include "common/check/allocations.hpp"
#include "common/error.hpp"
#include "common/labs/program/calls.hpp"
#include "common/labs/program/message.hpp"
#include "common/labs/program/watch.hpp"
#include "common/simt/emulator.hpp"
#include "common/simt/global_buffer.hpp"
#include "common/simt/kernel_error.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace flashladder::lab {

/// Stage `number` where the file defines it, else nullptr; for -1 any that it defines. Generated:
/// CMakeLists.txt.
const Stage* stage_of_file(int number);

namespace {

/// The machine does not give what the grading needs.
struct MachineError : Error {
  using Error::Error;
};

std::mutex showing;
std::vector<Intermediate>* shown = nullptr;

void show(const char* name, std::int64_t head, int row, int column, float value, simt::Where) {
  const std::lock_guard lock(showing);
  Intermediate& one = shown->emplace_back(Intermediate{{}, head, row, column, value});
  std::strncpy(one.name, name, sizeof one.name - 1);
}

/// Says what exception is being handled.
void describe_exception(Report& report) {
  report.thrown_from = calls_of_last_exception();
  try {
    throw;
  } catch (const simt::KernelError& error) {
    report.failure = Failure::kernel;
    report.what = error.what();
    report.kind = simt::name_of(error.kind);
  } catch (const MachineError& error) {
    report.failure = Failure::machine;
    report.what = error.what();
  } catch (const OutOfMemory& error) {
    report.failure = Failure::memory;
    report.what = error.what();
  } catch (const std::bad_alloc& error) {
    report.failure = Failure::memory;
    report.what = error.what();
  } catch (const std::exception& error) {
    report.failure = Failure::exception;
    report.what = error.what();
  } catch (...) {
    report.failure = Failure::exception;
    report.what = "something that is no std::exception";
  }
}

/// As often as a benchmark would, with the L2 cache emptied before each run.
template <class Run>
void time_runs(Run& run, Report& report) {
  GpuTimer timer;
  Workspace workspace(free_memory(Backend::cuda));
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while (!timed_enough(report.ms.size(), seconds())) {
    timer.start();
    run.start(workspace);
    report.ms.push_back(timer.stop());
  }
}

// --- kernels' tensors are a device's: what the host has of them is a number that only views take

/// The function of a stage that takes a Call.
template <class Call>
auto& pass_of(Stage& stage) {
  if constexpr (Call::pass == Pass::forward) {
    return stage.forward;
  } else {
    return stage.backward;
  }
}

void* hidden(void* data) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody is to get at the memory through it
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) ^ simt::device_only);
}

/// From here on the tensors of a pass of a stage are a device's.
template <class Call>
void hide_memory(Stage& stage) {
  static void (*students)(const Call&) = nullptr;
  static Saved saved = Saved::L;
  students = pass_of<Call>(stage);
  saved = stage.saved;
  if (students == nullptr) return;
  pass_of<Call>(stage) = [](const Call& call) {
    Call on = call;
    for (const NamedTensor& one : all_tensors) {
      if (one.given(Call::pass, saved, call.problem)) one.of(on).data = hidden(one.of(call).data);
    }
    students(on);
  };
}

/// Lets all that a pass of a stage does be recorded.
template <class Call>
void watch(Stage& stage) {
  static void (*students)(const Call&) = nullptr;
  students = pass_of<Call>(stage);
  pass_of<Call>(stage) = [](const Call& call) {
    struct Stop {
      ~Stop() { stop_watching(); }
    } stop;
    if constexpr (Call::pass == Pass::forward) {
      start_watching(&call);
    } else {
      start_watching(nullptr);
    }
    students(call);
  };
}

/// What is the same in both passes.
template <class Run>
void run_and_report(Run& run, const Stage& stage, const Job& job, Report& report) {
  Workspace workspace(free_memory(stage.backend));
  workspace.poison = !(job.watched && stage.backend == Backend::cpu);  // its writes would be counted
  const long before = allocations();
  run.run(workspace);
  report.allocations = allocations() - before;
  report.extra_bytes = workspace.peak_bytes();
  report.bytes_kept = workspace.bytes_in_use();
  if (job.watched) report.watched = watched();
  if (job.timed) time_runs(run, report);
  report.defect = run.defect();
}

void run_near(Stage stage, const Job& job, Report& report) {
  if (job.pass == Pass::backward) {
    if (job.watched) watch<Backward>(stage);
    BackwardRun run(stage, job.inputs, job.given, job.layout);
    run_and_report(run, stage, job, report);
    report.gradients = run.result();
    return;
  }
  if (job.watched) watch<Forward>(stage);
  ForwardRun run(stage, job.inputs, job.layout);
  run_and_report(run, stage, job, report);
  report.result = run.result();
  if (job.count_reads && stage.forward_counting != nullptr) {
    Workspace second;
    Counted::made = Counted::reads = 0;
    run.run_counting(second);
    report.scores_made = Counted::made;
    report.score_reads = Counted::reads;
    report.counted_reads = true;
  }
}

/// The rows of O, or of dQ, as far apart as the address space allows: an offset of 32 bits shows on a small
/// problem.
void run_far_apart(const Stage& stage, const Job& job, Report& report) {
  static void* const memory = mmap(nullptr, far_apart_bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw MachineError(
        "this machine gives no 8 GiB of address space, which are needed and hardly used: raise the limit "
        "(ulimit -v), or let memory be overcommitted (vm.overcommit_memory=0)");
  }
  const Problem& p = job.inputs.problem;
  const auto filled = [&](const std::vector<float>& values, std::int64_t heads, std::int64_t rows) {
    Buffer buffer(p.batch, heads, rows, p.d, job.layout, p.dtype);
    buffer.write(values);
    return buffer;
  };
  Buffer Q = filled(job.inputs.Q, p.q_heads, p.Nq), K = filled(job.inputs.K, p.kv_heads, p.Nk),
         V = filled(job.inputs.V, p.kv_heads, p.Nk);
  const std::int64_t row = (std::int64_t{1} << 31) / (p.Nq - 1) / 8 * 8;
  const Tensor apart{memory, p.dtype, {p.Nq * row, p.Nq * row, row}};
  const auto rows_apart = [&] {
    std::vector<float> values;
    for (std::int64_t i = 0; i < p.Nq; ++i) {
      for (std::int64_t c = 0; c < p.d; ++c) {
        const char* const at = static_cast<const char*>(memory) + (i * row + c) * size_of(p.dtype);
        values.push_back(load_as(p.dtype, at));
      }
    }
    return values;
  };
  Workspace workspace;
  if (job.pass == Pass::forward) {
    report.result.L.assign(p.Nq, NAN);
    run_forward(stage, {.problem = p,
                        .Q = Q.tensor(),
                        .K = K.tensor(),
                        .V = V.tensor(),
                        .O = apart,
                        .L = named_tensor("L").contiguous(p, report.result.L.data()),
                        .workspace = workspace});
    report.result.O = rows_apart();
    return;
  }
  Buffer O = filled(job.given.forward.O, p.q_heads, p.Nq), dO = filled(job.given.dO, p.q_heads, p.Nq),
         dK(p.batch, p.kv_heads, p.Nk, p.d, job.layout, p.dtype),
         dV(p.batch, p.kv_heads, p.Nk, p.d, job.layout, p.dtype);
  std::vector<float> L = job.given.forward.L, m = job.given.saved.m, l = job.given.saved.l;
  run_backward(stage, {.problem = p,
                       .Q = Q.tensor(),
                       .K = K.tensor(),
                       .V = V.tensor(),
                       .O = O.tensor(),
                       .L = named_tensor("L").contiguous(p, L.data()),
                       .dO = dO.tensor(),
                       .dQ = apart,
                       .dK = dK.tensor(),
                       .dV = dV.tensor(),
                       .m = named_tensor("m").contiguous(p, m.data()),
                       .l = named_tensor("l").contiguous(p, l.data()),
                       .workspace = workspace});
  report.gradients = {rows_apart(), dK.read(), dV.read()};
}

Report run_job(const Stage& stage, const Job& job) {
  Report report;
  simt::Options options;
  options.banks = job.banks;
  options.check = job.check;
  options.schedule = job.schedule;
  options.units = job.units;
  options.seed = 7;
  options.os_threads = 1;  // a kernel with a race in it does the same every time
  options.access_budget = 100'000;
  options.added_to_rows = -job.fewer_keys;
  simt::Trace trace;
  trace.row = job.traced_row;
  if (job.traced_row >= 0) options.trace = &trace;
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
#ifdef _OPENMP
  omp_set_num_threads(job.threads);
#endif
  if (job.intermediates) {
    shown = &report.intermediates;
    simt::Emulator::probe = show;
  }
  try {
    if (job.far_apart) {
      run_far_apart(stage, job, report);
    } else {
      run_near(stage, job, report);
    }
  } catch (...) {
    describe_exception(report);
  }
  simt::Emulator::probe = nullptr;
  report.ledger = emulator.total();
  if (job.traced_row >= 0) report.trace = to_json(trace);
  return report;
}

// --- with the grader

std::string read_all(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return "";
  std::string bytes(static_cast<std::size_t>(file.st_size), '\0');
  std::size_t got = 0;
  for (ssize_t n = 0; got < bytes.size() && (n = read(fd, bytes.data() + got, bytes.size() - got)) > 0;)
    got += static_cast<std::size_t>(n);
  bytes.resize(got);
  return bytes;
}

void send(Frame::Kind kind, const std::string& payload) {
  const Frame frame{kind, payload.size()};
  std::string message(reinterpret_cast<const char*>(&frame), sizeof frame);
  message += payload;
  for (std::size_t sent = 0; sent < message.size();) {
    const ssize_t n = write(report_fd, message.data() + sent, message.size() - sent);
    if (n <= 0) _exit(lost_status);  // nobody listens any more
    sent += static_cast<std::size_t>(n);
  }
}

int run_jobs(const Stage& stage) {
  report_signals();
  const std::vector<Job> jobs = decode_jobs(read_all(job_fd));
  if (std::none_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.watched; })) never_watch();
  for (const Job& job : jobs) {
    send(Frame::Kind::begun, "");
    send(Frame::Kind::report, encode(run_job(stage, job)));
  }
  return 0;
}

// --- by hand

int run_by_hand(const Stage& stage) {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = 65;
  p.Nk = 97;
  p.d = stage.supports.head_dims.empty() ? 32 : stage.supports.head_dims.front();
  p.dtype = stage.supports.dtypes.front();
  Job job;
  job.pass = stage.has(Pass::forward) ? Pass::forward : Pass::backward;
  job.check = true;
  job.inputs = {p, {}, {}, {}};
  // Any numbers do: whether the result is right is the grader's to say.
  BackwardInputs& given = job.given;
  for (auto [values, count] : {std::pair(&job.inputs.Q, p.Nq * p.d),
                               {&job.inputs.K, p.Nk * p.d},
                               {&job.inputs.V, p.Nk * p.d},
                               {&given.forward.O, p.Nq * p.d},
                               {&given.dO, p.Nq * p.d},
                               {&given.forward.L, p.Nq},
                               {&given.saved.m, p.Nq},
                               {&given.saved.l, p.Nq}}) {
    for (std::int64_t i = 0; i < p.q_heads * count; ++i)
      values->push_back(round_to(p.dtype, static_cast<float>(i * 37 % 101) / 50 - 1));
  }
  const Report report = run_job(stage, job);
  std::printf("stage %s on %s: ", label(stage).c_str(), to_string(p).c_str());
  if (report.failure != Failure::none || !report.defect.empty()) {
    std::printf("%s\n", (report.what + report.defect).c_str());
    return 1;
  }
  const bool forward = job.pass == Pass::forward;
  const std::vector<float>& output = forward ? report.result.O : report.gradients.dQ;
  std::printf("it ran to its end; %s begins with %g, %g, %g. Whether that is right: ./ladder lab grade\n",
              forward ? "O" : "dQ", static_cast<double>(output[0]), static_cast<double>(output[1]),
              static_cast<double>(output[2]));
  return 0;
}

}  // namespace
}  // namespace flashladder::lab

int main(int argc, char** argv) {
  using namespace flashladder::lab;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool graded = argc >= 3 && std::strcmp(argv[1], "--jobs-for") == 0;
  const flashladder::Stage* const stage = stage_of_file(graded ? std::atoi(argv[2]) : -1);
  if (stage == nullptr) return no_stage_status;
  flashladder::Stage run = *stage;
  if (argc == 4 || stage->backend == flashladder::Backend::emulator) {
    hide_memory<flashladder::Forward>(run);
    hide_memory<flashladder::Backward>(run);
  }
  return graded ? run_jobs(run) : run_by_hand(run);
}
