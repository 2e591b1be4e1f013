#include "common/labs/program.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "common/error.hpp"
#include "common/io/whole_file.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/folder.hpp"

namespace flashladder::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char *program_name = "program", *object_name = "attention.o";
constexpr int least_compiler_seconds = 20;  // of processor time; the slowest reference takes 9
constexpr std::int64_t compiler_memory = std::int64_t{4} << 30;

/// The command that compiles `stage` for `backend` in the build, as CMake wrote it down: the compiler and
/// its flags, without the files that it reads and writes, and without what makes errors of warnings.
std::vector<std::string> compiler_and_flags(const Stage& stage, Backend backend) {
  const fs::path path = fs::path(FLASHLADDER_BUILD_DIR) / "compile_commands.json";
  const auto commands = nlohmann::json::parse(std::ifstream(path), nullptr, false);
  const std::string folder = folder_name(stage);
  for (const auto& one : commands.is_array() ? commands : nlohmann::json::array()) {
    const fs::path source = one.value("file", "");
    const bool is_stage = source.parent_path().filename() == folder && source.stem() == "attention";
    const bool is_for_gpu = source.filename() == folder + ".cu";  // which CMake made of the stage
    if (!(backend == Backend::cuda ? is_for_gpu : is_stage)) continue;
    std::vector<std::string> flags;
    bool skip = false;  // what follows the last flag
    for (const std::string& word : shell_words(one.value("command", ""))) {
      const bool wanted = !skip && word != "-Werror" && word != "all-warnings" && word != "-c" &&
                          word != "-o" && word != source;
      skip = word == "-o";
      if (wanted) flags.push_back(word);
    }
    return flags;
  }
  throw Error(
      fmt::format("{} does not say how stage {} is compiled: build the ladder again with ./ladder setup",
                  path.string(), label(stage)));
}

/// Whether it is a CPU stage: of a stage of kernels the emulator sees all.
bool is_watched(const Stage& stage) {
  return stage.backend == Backend::cpu;
}

/// What the problems of all cases choose a kernel by, for common/kernel/host.hpp:
/// "{Dtype::fp16,64,true,false},...".
std::string choices_of_cases(const Stage& stage) {
  std::set<std::string> choices;
  const bool masked = stage.supports.features.window;  // then it has the tiles of the causal mask for all
  for (const Problem& p : problems_of_cases(stage))
    choices.insert(fmt::format("{{Dtype::{},{},{},{}}}", to_string(p.dtype), p.d, masked || p.causal,
                               graded_pass(stage) == Pass::backward));
  return fmt::format("{}", fmt::join(choices, ","));
}

/// The compiler and flags for the student's file: those of the stage. With -O1 the emulated cases take
/// little longer, and the compiler half as long; and a loop over numbers stays one: vectors are where the
/// student uses them. An array whose size is not constant would be memory that is not counted. Each basic
/// block, and of a CPU stage each access to memory, is told to common/labs/program/watch.hpp.
std::vector<std::string> compile_command(const Stage& stage) {
  std::vector<std::string> command = compiler_and_flags(stage, Backend::emulator);
  for (const char* word : {"-O1", "-g1", "-Werror=vla", "-fsanitize-coverage=trace-pc"})
    command.emplace_back(word);
  if (is_watched(stage)) {
    command.emplace_back("-fsanitize=thread");
  } else {  // of a table of kernels only those that a case is for: each takes the compiler a while
    command.push_back("-DFLASHLADDER_ONLY_FOR=" + choices_of_cases(stage));
  }
  return command;
}

/// Makes the program of what was compiled. For the emulator the libraries come first, and as a whole: of
/// what both they and the student's file define, theirs counts.
std::vector<std::string> link_command(const Stage& stage, Backend backend) {
  std::vector<std::string> command = compiler_and_flags(stage, Backend::emulator);
  for (const char* word : {"-o", program_name, "-xnone"}) command.emplace_back(word);
  if (backend == Backend::cuda) {
    for (const char* word : {object_name, FLASHLADDER_LAB_GPU_OBJECT, FLASHLADDER_CUDART, "-ldl", "-lrt",
                             FLASHLADDER_LAB_LIBRARY, FLASHLADDER_SIMT_LIBRARY})
      command.emplace_back(word);
  } else {
    for (const char* word : {"-Wl,--whole-archive", FLASHLADDER_LAB_LIBRARY, FLASHLADDER_SIMT_LIBRARY,
                             "-Wl,--no-whole-archive", object_name})
      command.emplace_back(word);
  }
  command.emplace_back("-pthread");
  std::istringstream options(FLASHLADDER_LAB_LINK_OPTIONS);
  for (std::string option; options >> option;) command.push_back(option);
  return command;
}

/// Compiles the student's file by nvcc, for the GPU of this machine and no other. A stage for one kind of
/// GPU is compiled for that by the build's own flags: "native" is 90 on Hopper, and wgmma takes 90a.
std::vector<std::string> nvcc_command(const Stage& stage, const std::string& file) {
  std::vector<std::string> command = compiler_and_flags(stage, Backend::cuda);
  if (stage.gpu == Gpu::any) {
    std::erase_if(command, [](const std::string& word) {
      return word.starts_with("--generate-code=") || word.starts_with("-arch=");
    });
    command.emplace_back("-arch=native");
  }
  for (const std::string& word : {std::string("-Xcompiler=-g1"), std::string("-c"), std::string("-o"),
                                  std::string(object_name), file})
    command.push_back(word);
  return command;
}

/// A line of nvcc, or of a tool that it runs, as g++ would have written it.
std::string as_gcc_writes(const std::string& line) {
  static const std::regex place(R"(^([^ (]+)\((\d+)\): ((catastrophic )?error|warning))"),
      tool(R"(^(nvcc|ptxas|nvlink)( .*;)? +(error|fatal) *: *)");
  return std::regex_replace(std::regex_replace(line, place, "$1:$2:1: $3"), tool, "$1: error: ");
}

int count_of_warnings(const std::string& log, const std::string& file) {
  int count = 0;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    count += line.starts_with(file + ":") && line.find(" warning: ") != line.npos;
  return count;
}

/// "segmentation fault" and what it usually comes from.
std::string signal_words(int signal) {
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
      return "it crashed (segmentation fault): a plain pointer or an array of its own is used outside its "
             "bounds, or a function calls itself without end";
    case SIGFPE:
      return "it crashed (an integer was divided by 0)";
    case SIGILL:
      return "it crashed (illegal instruction): a function that should return a value comes to its end "
             "without one";
    case SIGABRT:
      return "it was aborted: a failed assert, an exception in a function that is noexcept, or damaged "
             "memory";
    default:
      return fmt::format("it was ended by signal {} ({})", signal, strsignal(signal));
  }
}

/// What a program wrote to report_fd, frame by frame, up to the first that is cut or damaged.
void read_frames(std::string_view bytes, std::vector<Report>& reports, std::optional<Crash>& crash,
                 std::size_t& begun) {
  for (Frame frame{}; bytes.size() >= sizeof frame;) {
    std::memcpy(&frame, bytes.data(), sizeof frame);
    bytes.remove_prefix(sizeof frame);
    if (frame.bytes > bytes.size()) return;
    const std::string_view payload = bytes.substr(0, frame.bytes);
    bytes.remove_prefix(frame.bytes);
    if (frame.kind == Frame::Kind::begun) {
      ++begun;
    } else if (frame.kind == Frame::Kind::report) {
      try {
        reports.push_back(decode_report(payload));
      } catch (const Error&) {
        return;
      }
    } else if (frame.kind == Frame::Kind::crash && payload.size() == sizeof(Crash)) {
      std::memcpy(&crash.emplace(), payload.data(), sizeof(Crash));
      crash->count = std::clamp(crash->count, 0, Crash::most_calls);
    } else {
      return;
    }
  }
}

/// Throws Error where it is the system, and not the program, that let a run end.
void require_started(const Ended& ended, const Limits& limits) {
  if (!ended.started || (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == lost_status))
    throw Error(
        "the program that was compiled cannot be started or heard: are memory, open files and processes "
        "limited too much?");
  if (ended.output.find("libgomp: Thread creation failed") != std::string::npos)
    throw Error(
        "the system gives no more threads (ulimit -u, or the container's limit): nothing was graded");
  const bool killed = WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGKILL;
  if (killed && !ended.out_of_time && !ended.flooded && ended.seconds < limits.seconds) {
    throw Error(fmt::format(
        "the system killed a run, which may take {} MiB of memory: close other programs, or lower "
        "that by --memory-limit",
        limits.memory >> 20));
  }
}

}  // namespace

std::vector<std::string> shell_words(std::string_view command) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote == 0 && (c == ' ' || c == '\t')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      words.back() += command[++i];
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  return words;
}

std::string first_error(const std::string& log, const std::string& file) {
  // "attention.cu:57" where a line begins with it, of the student's file or any.
  const auto any_place = [](const std::string& line) -> std::string {
    const std::size_t digits = line.find(':') + 1, colon = line.find(':', digits);
    const bool is_place = digits > 1 && colon != line.npos && colon > digits &&
                          line.find_first_not_of("0123456789", digits) == colon;
    return is_place ? line.substr(0, colon) : "";
  };
  const auto place = [&](const std::string& line) {
    return line.starts_with(file + ":") ? any_place(line) : "";
  };
  // An error in a header comes with the line of the file that led there: before it, or after it.
  const auto leads_there = [](const std::string& line) {
    return line.find("required from") != line.npos || line.find("requested here") != line.npos;
  };
  std::istringstream lines(log);
  std::string error, led_by, linker;
  for (std::string line; std::getline(lines, line);) {
    line = as_gcc_writes(line);
    if (line.starts_with("collect2: ")) continue;  // that the linker failed: why, it has said before
    if (const std::size_t at = line.find(" error: "); at != line.npos && error.empty()) {
      if (any_place(line).empty()) return file + ":" + line.substr(at);
      if (!place(line).empty()) return place(line) + ":" + line.substr(at);
      if (!led_by.empty()) return led_by + ":" + line.substr(at);
      error = line;
    } else if (line.find(" warning: ") != line.npos) {
      led_by = "";  // what led there led to a warning
    } else if (!place(line).empty() && leads_there(line)) {
      led_by = place(line);
      if (!error.empty()) return led_by + ":" + error.substr(error.find(" error: "));
    }
    for (const char* what : {"undefined reference to ", "multiple definition of "}) {
      const std::size_t at = line.find(what);
      if (at != line.npos && linker.empty()) linker = file + ": " + line.substr(at);
    }
  }
  if (!error.empty()) return error;
  return !linker.empty() ? linker : file + ": it compiles, and cannot be linked";
}

CompiledHeaders::CompiledHeaders(const Stage& stage, const std::string& text) {
  std::string includes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("#include ")) includes += line + "\n";
  write_file(path(), includes);
  std::vector<std::string> command = compile_command(stage);
  // The compiler takes the file of this name, where it is there, for the header.
  // -c, because the compiler would link what a flag before had called C++, and no header.
  for (const std::string& word : {std::string("-c"), std::string("-xc++-header"), path().string(),
                                  std::string("-o"), path().string() + ".gch"})
    command.push_back(word);
  const Ended ended = run_program({.command = command, .folder = folder_.path()});
  if (!ended.started || ended.status != 0)
    throw Error("the headers of a lab cannot be compiled: " + ended.output);
}

fs::path CompiledHeaders::path() const {
  return folder_.path() / "headers.hpp";
}

Program::Program(const Stage& stage, const std::string& file, const std::string& text,
                 const fs::path& folder, const Limits& limits, Backend backend,
                 const CompiledHeaders* headers)
    : stage_(stage), file_(file), folder_(folder), limits_(limits), backend_(backend) {
  const Handed handed = {stage, file, text};
  compiled_.refused = refused_source(handed);
  if (!compiled_.refused.empty()) return;
  write_file(folder / file, text);
  if (backend == Backend::cuda) {
    // CUDA takes address space for all memory that there is: with a limit neither nvcc, which looks for the
    // GPU, nor the program would start. What nvcc makes of the file has more in it than the file: the
    // object file that is looked at is the emulator's.
    limits_.memory = 0;
    if (compile(nvcc_command(stage, file), 60, 0)) compile(link_command(stage, backend), 60, 0);
    return;
  }
  const int seconds = std::max(least_compiler_seconds, limits.seconds * 3 / 2);
  std::vector<std::string> command = compile_command(stage);
  if (headers != nullptr) command.insert(command.end(), {"-include", headers->path().string()});
  command.insert(command.end(), {"-c", "-o", object_name, file});
  if (!compile(command, seconds, compiler_memory)) return;
  const bool sanitized = std::ranges::any_of(
      command, [](const std::string& word) { return word.starts_with("-fsanitize=address"); });
  compiled_.refused = refused_object(handed, folder / object_name, sanitized);
  compiled_.ok = compiled_.refused.empty();
  if (compiled_.ok) compile(link_command(stage, backend), seconds, compiler_memory);
}

bool Program::compile(const std::vector<std::string>& command, int seconds, std::int64_t memory) {
  const Ended ended =
      run_program({.command = command,
                   .folder = folder_,
                   .limits = {.seconds = seconds, .must_compute = false, .memory = memory}});
  if (!ended.started) {
    throw Error(fmt::format(
        "the compiler that the ladder was built with, {}, cannot be run: install it, or set the ladder up "
        "again with ./ladder setup",
        command.front()));
  }
  compiled_.log += ended.output;
  compiled_.ok = WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0;
  compiled_.warnings += count_of_warnings(ended.output, file_);
  if (compiled_.ok) return true;
  const auto says = [&](const char* words) { return ended.output.find(words) != std::string::npos; };
  if (ended.out_of_time || says("time limit exceeded")) {
    compiled_.error = fmt::format(
        "{}: the compiler did not come to an end in {} s of processor time: something in it makes "
        "far more code than is written, such as a template that needs itself (where the machine is slow, "
        "raise "
        "--time-limit)",
        file_, seconds);
  } else if (says("out of memory allocating") || says("virtual memory exhausted")) {
    compiled_.error =
        fmt::format("{}: the compiler needs more than {} GiB of memory for it", file_, memory >> 30);
    compiled_.doubtful = true;
  } else {
    compiled_.error = first_error(ended.output, file_);
    // An error at a line is the file's, but for fatal ones: a disk that is full, a program that is missing.
    const bool placed = compiled_.error.starts_with(file_ + ":") &&
                        std::isdigit(static_cast<unsigned char>(compiled_.error[file_.size() + 1])) != 0;
    compiled_.doubtful = !placed || says("fatal error") || says("internal compiler error");
  }
  return false;
}

std::string Program::place_of(const std::vector<std::uint64_t>& calls) const {
  Start start{.command = {"addr2line", "-i", "-e", (folder_ / program_name).string()}, .folder = folder_};
  for (const std::uint64_t call : calls) start.command.push_back(fmt::format("{:#x}", call));
  std::istringstream lines(calls.empty() ? "" : run_program(start).output);
  for (std::string line; std::getline(lines, line);) {
    line.erase(std::min(line.find(' '), line.size()));  // " (discriminator 3)"
    const std::size_t colon = line.rfind(':');
    if (colon != line.npos && fs::path(line.substr(0, colon)).filename() == file_ && line[colon + 1] != '?')
      return file_ + line.substr(colon);
  }
  return "";
}

Answers Program::run(const std::vector<Job>& jobs) const {
  static std::atomic<int> count = 0;
  const std::string name = fmt::format("run{}", ++count);
  const fs::path file = folder_ / (name + ".jobs"), empty = folder_ / name;
  write_file(file, encode(jobs));
  fs::create_directory(empty);
  Limits limits = limits_;
  for (const Job& job : jobs) limits.memory += job.far_apart ? far_apart_bytes : 0;
  std::vector<std::string> kept;  // which GPU there is, and where its driver
  if (backend_ == Backend::cuda) kept = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH"};
  std::vector<std::string> command = {(folder_ / program_name).string(), "--jobs-for",
                                      std::to_string(stage_.number)};
  if (backend_ == Backend::emulator && stage_.backend != Backend::cpu) command.emplace_back("--device");
  const Ended ended = run_program({.command = command,
                                   .folder = empty,
                                   .limits = limits,
                                   .own_environment = true,
                                   .kept = kept,
                                   .jobs = file});
  std::error_code ignored;
  fs::remove_all(empty, ignored);
  fs::remove(file, ignored);
  require_started(ended, limits);

  Answers answers;
  std::optional<Crash> crash;
  std::size_t begun = 0;
  read_frames(ended.reports, answers.reports, crash, begun);
  answers.output = ended.output + (ended.output_cut ? "\n(and more)" : "");
  if (answers.reports.size() > jobs.size()) answers.reports.resize(jobs.size());
  if (answers.reports.size() < jobs.size()) {
    answers.ended = why_ended(ended, crash);
    answers.out_of_time = ended.out_of_time || ended.flooded ||
                          (WIFSIGNALED(ended.status) &&
                           (WTERMSIG(ended.status) == SIGXCPU || WTERMSIG(ended.status) == SIGKILL));
    if (begun == 0 && !(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == no_stage_status))
      answers.ended += ", before the first case, where global variables are made";
  }
  count_operations(answers);
  return answers;
}

void Program::count_operations(Answers& answers) const {
  for (Report& report : answers.reports) {
    if (report.watched.blocks.empty()) continue;
    const std::lock_guard lock(code_mutex_);
    if (!code_) {
      const std::string name = "program.code";  // it is longer than what a pipe would keep
      const Ended ended = run_program(
          {.command = {"sh", "-c",
                       fmt::format("exec objdump -d --no-show-raw-insn {} >{}", program_name, name)},
           .folder = folder_});
      if (ended.status != 0) {
        throw Error(
            "objdump, which comes with the compiler's linker in the package binutils, cannot be run: " +
            ended.output);
      }
      code_.emplace(text_of(folder_ / name));
    }
    report.watched.operations = code_->operations(report.watched.blocks);
  }
}

std::string Program::why_ended(const Ended& ended, const std::optional<Crash>& crash) const {
  std::string place;
  if (crash) place = place_of({crash->calls, crash->calls + crash->count});
  if (!place.empty()) place = " at " + place;
  if (ended.flooded) return "it printed more than 16 MiB, and was stopped";
  if (ended.out_of_time)
    return "it did not end, and hardly computed: it waits for something that does not come";
  if (WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGXCPU) {
    return fmt::format(
        "it did not end within {} s of processor time{}: is there a loop that does not come to its end?",
        limits_.seconds, place.empty() ? "" : ", and was stopped" + place);
  }
  if (crash && crash->of_device != 0) {
    return fmt::format(
        "it reaches Q, K, V, O or L by plain pointers{}: they are in a device's memory, where kernels "
        "alone "
        "compute, by gmem",
        place);
  }
  if (WIFSIGNALED(ended.status))
    return signal_words(WTERMSIG(ended.status)) + (place.empty() ? "" : ";" + place);
  const int status = WEXITSTATUS(ended.status);
  if (status == no_stage_status) {
    return fmt::format(
        "the file does not define flashladder::stage_{}::stage, as the skeleton does at its end",
        number_text(stage_));
  }
  return fmt::format(
      "it ended the whole program, with exit status {}: a stage returns to its caller, take exit() and the "
      "like out",
      status);
}

}  // namespace flashladder::lab
