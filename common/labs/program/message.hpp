#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/check/diagnose.hpp"
#include "common/check/run.hpp"
#include "common/simt/ledger.hpp"
#include "common/simt/options.hpp"

namespace flashladder::lab {

// What the grader and the program with a student's file in it say to each other. The program is given
// inputs and nothing else; what is right, and how many points it is worth, stays with the grader.

inline constexpr int job_fd = 3;            ///< The program reads its jobs from here,
inline constexpr int report_fd = 4;         ///< and writes here what came of them.
inline constexpr int lost_status = 78;      ///< Its exit status where what it sends cannot be written.
inline constexpr int no_stage_status = 77;  ///< Its exit status where the file defines no such stage.

/// Address space that a job with `far_apart` needs.
inline constexpr std::int64_t far_apart_bytes = ((std::int64_t{1} << 31) + 256) * 4;

/// One pass that the program is asked for.
struct Job {
  Pass pass = Pass::forward;                          ///< Which one.
  Inputs inputs;                                      ///< In the dtype that the stage computes in.
  BackwardInputs given;                               ///< What a backward pass has beside them.
  Layout layout = Layout::contiguous;                 ///< Of all tensors in memory.
  bool check = false;                                 ///< As simt::Options::check.
  bool banks = false;                                 ///< As simt::Options::banks.
  simt::Schedule schedule = simt::Schedule::forward;  ///< As simt::Options::schedule.
  simt::Units units = simt::Units::lazy;              ///< As simt::Options::units.
  int threads = 1;                                    ///< Of a CPU stage.
  bool count_reads = false;                           ///< Also run forward_counting.
  bool far_apart = false;      ///< The rows of O, or of dQ, are so far apart that an int holds no offset.
  bool intermediates = false;  ///< Send what probe() shows.
  bool watched = false;        ///< Record how it computes; of a CPU stage also what it does with memory.
  int fewer_keys = 0;          ///< Each row sees so many keys less than the mask in its corner gives.
  int traced_row = -1;         ///< Trace it, and follow this row of the first head; -1: do not.
  bool timed = false;          ///< Run it again and again, and time it by the GPU's own clock.
};

/// Why a job came to no end.
enum class Failure {
  none,       ///< It did.
  kernel,     ///< The emulator stopped a kernel.
  memory,     ///< There was no more memory.
  exception,  ///< Any other exception.
  machine,    ///< The machine does not give what the grading needs: not the student's fault.
};

/// Two threads that use the same memory, one at least writing, and nothing orders them.
struct Race {
  /// Which memory.
  enum class Memory { Q, K, V, O, L, workspace, other };
  Memory memory = Memory::other;  ///< Where they meet,
  std::int64_t element = 0;       ///< and at which float of it.
  std::int32_t before = 0;        ///< The thread that was there first,
  std::int32_t thread = 0;        ///< and the other one,
  bool writes = false;            ///< which writes; else it reads what the first has written.
  std::uint64_t from = 0;         ///< The other one's access in the program.
};

/// How often a basic block of the student's file ran.
struct Block {
  std::uint64_t begin = 0;  ///< Address in the program.
  std::uint64_t count = 0;  ///< How often.
};

/// How often numbers were added, multiplied, compared for the larger and so on.
struct Operations {
  std::int64_t on_single_numbers = 0;  ///< By instructions that work on one float.
  std::int64_t on_lanes = 0;           ///< By instructions that work on a vector, each lane counted.
  std::int64_t divisions = 0;          ///< Of both.
  std::int64_t arithmetic = 0;         ///< Of both, what is no comparison, maximum or minimum.
};

/// What was recorded of a CPU stage.
struct Watched {
  bool complete = false;              ///< Whether all of it was seen.
  std::int64_t K_reads = 0;           ///< Elements of K read.
  std::int64_t V_reads = 0;           ///< Elements of V read.
  std::int64_t output_writes = 0;     ///< Elements of O and L written.
  std::int64_t workspace_writes = 0;  ///< Elements of extra memory written.
  std::int64_t exp = 0;               ///< Calls of the library's exponential.
  std::int64_t static_bytes = 0;      ///< Bytes of static and thread-local variables that were written.
  std::int64_t stack_bytes = 0;       ///< Most bytes of a thread's stack in use.
  std::int64_t writers = 0;           ///< Threads that wrote rows of O.
  std::int64_t most_written = 0;      ///< Elements of O that one thread wrote, the one that wrote the most.
  std::int64_t most_rows = 0;         ///< Elements of L likewise.
  std::int64_t locked_accesses = 0;   ///< Of several threads: accesses while the others had to wait.
  std::int64_t races = 0;             ///< Accesses that race with one before.
  Race race;                          ///< The first of them.
  std::vector<Block> blocks;          ///< Those that ran.
  Operations operations;              ///< What they computed: the grader looks into the machine code.
};

/// What came of a job.
struct Report {
  Failure failure = Failure::none;          ///< Why it came to no end.
  std::string what;                         ///< The exception's words.
  std::string kind;                         ///< Of a kernel's error, as simt::name_of.
  std::vector<std::uint64_t> thrown_from;   ///< The calls that led to the exception, innermost first.
  std::string defect;                       ///< As Run::defect.
  Result<float> result;                     ///< Of a forward pass.
  Gradients<float> gradients;               ///< Of a backward pass.
  simt::Ledger ledger;                      ///< Of all launches; empty for a CPU stage.
  std::int64_t extra_bytes = 0;             ///< Most bytes of the workspace in use at once.
  std::int64_t bytes_kept = 0;              ///< Bytes of the workspace not given back.
  std::int64_t allocations = 0;             ///< Calls that got memory from elsewhere.
  std::int64_t scores_made = 0;             ///< (count_reads) Scores computed.
  std::int64_t score_reads = 0;             ///< (count_reads) How often they were read.
  bool counted_reads = false;               ///< Whether the last two were counted.
  std::vector<Intermediate> intermediates;  ///< (intermediates) All that kernels showed.
  std::vector<double> ms;                   ///< (timed) Of each run.
  std::string trace;                        ///< (traced_row) As simt::to_json.
  Watched watched;                          ///< (watched) What the stage did.
};

/// A signal that ended the program.
struct Crash {
  static constexpr int most_calls = 48;  ///< That are told of.
  std::int32_t signal = 0;               ///< Which one.
  std::int32_t count = 0;                ///< Of the calls.
  std::uint64_t of_device = 0;           ///< Whether it was an access of the host to a device's memory.
  std::uint64_t calls[most_calls] = {};  ///< Addresses in the program, innermost first.
};

/// Jobs as bytes.
std::string encode(const std::vector<Job>& jobs);
/// And back. Throws Error where the bytes are not what encode() makes.
std::vector<Job> decode_jobs(std::string_view bytes);
/// A report as bytes.
std::string encode(const Report& report);
/// And back. Throws Error where the bytes are not what encode() makes.
Report decode_report(std::string_view bytes);

/// What the program writes to report_fd: frames, each this header and `bytes` bytes.
struct Frame {
  /// What follows.
  enum class Kind : std::uint64_t {
    begun = 0x666c61736863a501,   ///< Nothing: the program takes up the next job.
    report = 0x666c61736863a502,  ///< A Report.
    crash = 0x666c61736863a503,   ///< A Crash.
  };
  Kind kind;            ///< Of what follows.
  std::uint64_t bytes;  ///< How many follow.
};

}  // namespace flashladder::lab
