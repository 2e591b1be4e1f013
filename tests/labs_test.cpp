// The parts of ./ladder lab, each alone: markers, handouts, what a compiler says, messages, points. The
// labs as a student meets them: lab_test.py.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <sstream>

#include "catch.hpp"
#include "common/attention/error.hpp"
#include "common/check/inputs.hpp"
#include "common/cli/lab_cases.hpp"
#include "common/cli/lab_claim.hpp"
#include "common/cli/lab_folder.hpp"
#include "common/cli/lab_grade.hpp"
#include "common/cli/lab_process.hpp"
#include "common/cli/lab_program.hpp"
#include "common/cli/lab_source.hpp"
#include "common/cli/lab_speed.hpp"
#include "common/cli/lab_text.hpp"
#include "common/cli/lab_why.hpp"

namespace {

using namespace flashladder;
using namespace flashladder::lab;

/// What `call` throws, as text; "" where it throws nothing.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a source with markers becomes a reference and a skeleton", "[labs]") {
  const Source source = read_source(
      "int before;\n"
      "  // lab: the first thing,\n"
      "  //   and how\n"
      "  // given: int given = 0;\n"
      "  // given:     more();\n"
      "  int real = 1;  // kept\n"
      "\n"
      "  // why\n"
      "  int more_real = 2;\n"
      "  // end of lab\n"
      "//   not a marker\n"
      "// lab: the second\n"
      "last();\n"
      "// end of lab\n",
      "a.cu");
  CHECK(source.reference ==
        "int before;\n  int real = 1;  // kept\n\n  // why\n  int more_real = 2;\n//   not a "
        "marker\nlast();\n");
  CHECK(
      source.skeleton ==
      "int before;\n  // TODO (about 2 lines): the first thing, and how\n  int given = 0;\n      more();\n"
      "//   not a marker\n// TODO (about 1 line): the second\n");
  CHECK(source.regions.size() == 2);
  CHECK(source.lines() == 3);
  CHECK(read_source("int x;\n", "a.cu").regions.empty());
}

TEST_CASE("a long task is wrapped in the skeleton", "[labs]") {
  std::string task;
  for (int i = 0; i < 40; ++i) task += "word ";
  const Source source = read_source("    // lab: " + task + "\nx;\n    // end of lab\n", "a.cu");
  std::istringstream lines(source.skeleton);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    CHECK(line.size() <= 108);
    CHECK(line.starts_with(count == 0 ? "    // TODO (about 1 line): word" : "    //   word"));
  }
  CHECK(count == 3);
}

TEST_CASE("markers that do not fit together are named with their line", "[labs]") {
  const std::pair<const char*, const char*> cases[] = {
      {"// lab: a\nx;\n// lab: b\ny;\n// end of lab\n", "a.cu:3: a lab inside another"},
      {"\n// end of lab\n", "a.cu:2: the end of a lab that has not begun"},
      {"x;\n// lab: a\ny;\n", "a.cu:2: the lab that begins here has no '// end of lab'"},
      {"// lab: a\nx;\n// given: y;\n// end of lab\n", "a.cu:3: '// given:' stands behind code"},
  };
  for (const auto& [text, says] : cases) {
    const std::string error = error_of([&, text = text] { read_source(text, "a.cu"); });
    INFO(error);
    CHECK(error.starts_with(says));
    CHECK(error.find("docs/labs.md") != error.npos);
  }
}

TEST_CASE("a handout's section of feedback is taken out and read", "[labs]") {
  const Handout handout = read_handout(
      "# Title\n\ntext\n\n## Feedback\n- exp too many: one\n  and more\n- global.K.read_elements too few: "
      "two: three\n\n"
      "## Further\nlast\n",
      "lab.md");
  CHECK(handout.text == "# Title\n\ntext\n\n## Further\nlast\n");
  CHECK(handout.hints.size() == 2);
  CHECK(handout.hint("exp", true) == "one and more");
  CHECK(handout.hint("exp", false) == "");
  CHECK(handout.hint("global.K.read_elements", false) == "two: three");
  for (const char* wrong : {"- exp: one\n", "- exp and mul too many: one\n", "text\n"}) {
    const std::string error =
        error_of([&] { read_handout(std::string("## Feedback\n") + wrong, "lab.md"); });
    CHECK(error.starts_with("lab.md:2: "));
  }
}

TEST_CASE("every lab's markers and hints can be read, and its hints are of counters that there are",
          "[labs]") {
  int labs = 0;
  for (const Stage* stage : stages()) {
    if (!has_lab(*stage)) continue;
    ++labs;
    INFO(label(*stage));
    const Lab lab = find_lab(*stage);
    CHECK(lab.source.lines() > 0);
    const std::vector<Job> cases = counted_cases(*stage);
    const std::vector<Counter> counters = counters_of(lab, cases);
    for (const Handout::Hint& hint : lab.handout.hints) {
      INFO(hint.counter);
      CHECK(std::ranges::find(counters, hint.counter, &Counter::name) != counters.end());
    }
    // There is an idea, and the stage before does not have it.
    CHECK(std::ranges::any_of(counters, [](const Counter& counter) { return counter.idea; }));
  }
  // Every stage with a forward pass has one.
  CHECK(labs == std::ranges::count_if(stages(), [](const Stage* one) { return one->forward != nullptr; }));
}

TEST_CASE("a stage that has no lab is answered with those that have one", "[labs]") {
  const Stage none{.number = 98,
                   .name = "none",
                   .title = "",
                   .idea = "",
                   .claim = "",
                   .before = 0,
                   .supports = {.dtypes = fp32_only},
                   .forward = nullptr};
  const std::string error = error_of([&] { find_lab(none); });
  CHECK(error.starts_with("there is no lab for stage 98 none: there are labs for 00, 01"));
}

TEST_CASE("the words of a shell command", "[labs]") {
  CHECK(shell_words(R"(/usr/bin/c++  -DA=\"b\" "-DC=d e" 'f\g' -o x)") ==
        std::vector<std::string>{"/usr/bin/c++", "-DA=\"b\"", "-DC=d e", "f\\g", "-o", "x"});
  CHECK(shell_words("").empty());
}

TEST_CASE("the first error of a compiler is told with the line of the student's file", "[labs]") {
  const std::string file = "attention.cu";
  CHECK(first_error("attention.cu: In function 'void f()':\nattention.cu:5:3: warning: unused\n"
                    "attention.cu:57:12: error: 'x' was not declared\nattention.cu:58:1: error: more\n",
                    file) == "attention.cu:57: error: 'x' was not declared");
  // In a header: g++ says before it where it came from, clang after it.
  CHECK(first_error("attention.cu:71:20:   required from 'void k() [with int d = 32]'\n"
                    "/a/memory.hpp:9:10: error: static assertion failed\n",
                    file) == "attention.cu:71: error: static assertion failed");
  CHECK(first_error(
            "/a/memory.hpp:9:10: error: no member\nattention.cu:71:20: note: in instantiation of function "
            "template specialization 'k<32>' requested here\n",
            file) == "attention.cu:71: error: no member");
  CHECK(first_error("/a/memory.hpp:9:10: error: no member\n", file) ==
        "/a/memory.hpp:9:10: error: no member");
  CHECK(first_error("/usr/bin/ld: /tmp/x.o: in function `f':\nattention.cu:(.text+0x1): undefined "
                    "reference to `g()'\n",
                    file) == "attention.cu: undefined reference to `g()'");
  CHECK(first_error(
            "attention.cu:5:3: warning: unused\nattention.cu:9:1:   required from here\n"
            "/a/memory.hpp:2:1: warning: more\nc++: internal compiler error: File size limit exceeded\n",
            file) == "attention.cu: error: File size limit exceeded");
  CHECK(first_error("/usr/bin/ld: x.o: in function `main': multiple definition of `main'; y\n"
                    "collect2: error: ld returned 1 exit status\n",
                    file) == "attention.cu: multiple definition of `main'; y");
  CHECK(first_error("collect2: error: ld returned 1 exit status\n", file) ==
        "attention.cu: it compiles, and cannot be linked");
}

TEST_CASE("the first error of nvcc, and of the tools that it runs, is told in the same way", "[labs]") {
  const std::string file = "attention.cu";
  CHECK(first_error("attention.cu(5): warning #177-D: variable \"a\" was declared but never referenced\n"
                    "attention.cu(57): error: identifier \"x\" is undefined\n1 error detected\n",
                    file) == "attention.cu:57: error: identifier \"x\" is undefined");
  CHECK(first_error("attention.cu(3): catastrophic error: cannot open source file \"x.h\"\n", file) ==
        "attention.cu:3: error: cannot open source file \"x.h\"");
  CHECK(first_error("ptxas error   : Entry function 'k' uses too much shared data\n", file) ==
        "attention.cu: error: Entry function 'k' uses too much shared data");
  CHECK(first_error("ptxas /tmp/a.ptx, line 9; error   : Feature 'mma' requires .target sm_80 or higher\n",
                    file) == "attention.cu: error: Feature 'mma' requires .target sm_80 or higher");
  CHECK(first_error("nvcc fatal   : Unsupported gpu architecture 'compute_10'\n", file) ==
        "attention.cu: error: Unsupported gpu architecture 'compute_10'");
}

TEST_CASE("jobs and reports arrive as they were sent, and cut ones do not", "[labs]") {
  Job job = cases_of(input_families()[1], find_stage(0), 5)[3];
  job.threads = 3;
  job.timed = true;
  const std::vector<Job> jobs = decode_jobs(encode({job, job}));
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[1].inputs.K == job.inputs.K);
  CHECK(jobs[1].threads == 3);
  CHECK(jobs[1].timed);
  CHECK(words_of(jobs[1]) == words_of(job));

  Report report;
  report.failure = Failure::memory;
  report.what = "much";
  report.thrown_from = {1, 2, 3};
  report.result.O = {1, 2};
  report.ledger.exp = 7;
  report.ledger.global["K"].read_bytes = 8;
  report.ledger.shared["P"].wavefronts = 9;
  report.intermediates = {{"O~", 1, 2, 3, 4.5f}};
  report.ms = {0.5, 0.25};
  const std::string bytes = encode(report);
  const Report got = decode_report(bytes);
  CHECK(got.failure == Failure::memory);
  CHECK(got.what == "much");
  CHECK(got.thrown_from == report.thrown_from);
  CHECK(got.result.O == report.result.O);
  CHECK(got.ledger == report.ledger);
  CHECK(got.intermediates[0].value == 4.5f);
  CHECK(got.ms == report.ms);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_THROWS_AS(decode_report(std::string_view(bytes).substr(0, length)), Error);
  CHECK_THROWS_AS(decode_report(bytes + "x"), Error);
}

TEST_CASE("points are divided among all items, and none is lost", "[labs]") {
  CHECK(shares(40, 7) == std::vector<int>{6, 6, 6, 6, 6, 5, 5});
  CHECK(shares(10, 1) == std::vector<int>{10});
  CHECK(shares(10, 0).empty());
  for (const Stage* stage : stages()) {
    if (!has_lab(*stage)) continue;
    const Lab lab = find_lab(*stage);
    Grade grade;
    grade.parts = Grader(lab).parts();
    INFO(label(*stage));
    CHECK(grade.most() == 100);
    for (const Part& part : grade.parts) {
      for (const Item& item : part.items) CHECK(item.most > 0);
    }
  }
}

TEST_CASE("a count keeps its rule or does not", "[labs]") {
  CHECK(reaches(Rule::exact, 5, 5));
  CHECK_FALSE(reaches(Rule::exact, 4, 5));
  CHECK(reaches(Rule::at_most, 4, 5));
  CHECK_FALSE(reaches(Rule::at_most, 6, 5));
  CHECK_FALSE(reaches(Rule::at_most, -1, 5));  // it was not counted
  CHECK(reaches(Rule::at_least, 6, 5));
  CHECK_FALSE(reaches(Rule::at_least, 4, 5));
}

TEST_CASE("what wrong cases have in common is found, and nothing where there is nothing", "[labs]") {
  const Stage& stage = find_stage(0);
  const std::vector<Job> jobs = cases_of(input_families()[0], stage, 1);
  const auto trait = [&](auto wrong) {
    std::vector<bool> right;
    for (const Job& job : jobs) right.push_back(!wrong(job.inputs.problem));
    return common_trait(stage, jobs, right);
  };
  CHECK(trait([](const Problem& p) { return p.causal; }) == "those with a causal mask");
  CHECK(trait([](const Problem& p) { return p.kv_heads < p.q_heads; }) ==
        "those with grouped heads (Hkv < H)");
  CHECK(trait([](const Problem& p) { return p.scale < 0; }) == "those with a negative scale");
  CHECK(trait([](const Problem& p) { return p.Nk >= 2048; }) == "those with 2,048 keys or more");
  CHECK(trait([](const Problem& p) { return p.q_heads > 16; }) == "those with more than 16 heads");
  CHECK(trait([](const Problem& p) { return p.causal && p.Nq != 40; }) == "all of them with a causal mask");
  CHECK(trait([](const Problem&) { return true; }) == "");
  CHECK(trait([](const Problem&) { return false; }) == "");
}

TEST_CASE("what is wrong in an output is told by its place and by the keys that it would be right for",
          "[labs]") {
  Problem p;
  p.q_heads = 6;
  p.kv_heads = 2;
  p.Nq = 20;
  p.Nk = 100;
  p.d = 32;
  p.causal = true;
  const Inputs inputs = random_inputs(p, 3);
  const Result<double> oracle = oracle_forward(inputs);
  const Result<float> right = plain_forward(inputs, Dtype::fp32);
  CHECK(where_wrong(p, right, oracle) == "");
  CHECK(keys_in_place(inputs, right, oracle, 32) == "");

  Result<float> wrong = right;
  for (std::size_t i = 0; i < wrong.O.size(); ++i) wrong.O[i] += i % 32 >= 8 && i / 32 % 20 == 7 ? 1 : 0;
  CHECK(where_wrong(p, wrong, oracle) ==
        "Wrong are columns 8 to 31, row 7 only. L is right, and O is not: m and l are right.");
  CHECK(keys_in_place(inputs, wrong, oracle, 32) == "");
  wrong = right;
  wrong.L.back() += 1;
  CHECK(where_wrong(p, wrong, oracle) ==
        "Wrong are row 19, head 5 only. O is right, and L is not: is it L = m + log l, with the natural "
        "logarithm?");
  wrong = right;
  wrong.O[0] = NAN;
  CHECK(where_wrong(p, wrong, oracle).find("NaN comes from") != std::string::npos);

  // Each of these is the output for other inputs: with keys far away, or with another mask or head.
  const auto with = [&](auto change) {
    Inputs other = inputs;
    change(other);
    return keys_in_place(inputs, plain_forward(other, Dtype::fp32), oracle, 32);
  };
  CHECK(with([](Inputs& in) { in.problem.causal = false; }) == "O is as if there were no mask.");
  const auto without = [&](std::int64_t begin, std::int64_t end) {
    Inputs positive = inputs;  // so that a key far below 0 has no weight
    for (float& q : positive.Q) q = std::abs(q);
    Inputs other = positive;
    for (std::int64_t kv = 0; kv < 2; ++kv) {
      for (std::int64_t j = begin; j < end; ++j) std::fill_n(&other.K[(kv * p.Nk + j) * p.d], p.d, -1e4f);
    }
    return keys_in_place(positive, plain_forward(other, Dtype::fp32), oracle_forward(positive), 32);
  };
  CHECK(without(32, 64) == "O is as if key tile 1, keys 32 to 63, were left out.");
  CHECK(without(50, 100) == "O is as if all keys from 50 on were left out.");
  CHECK(without(0, 3) == "O is as if the first 3 keys were left out.");
  const std::string heads =
      with([](Inputs& in) { std::rotate(in.V.begin(), in.V.begin() + in.V.size() / 2, in.V.end()); });
  CHECK(heads == "O of head 0 is as if V were those of key/value head 1, and not 0.");
}

TEST_CASE("a program is run within its limits", "[labs]") {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> command, int seconds = 0) {
    return run_program(
        {.command = std::move(command), .folder = folder.path(), .limits = {.seconds = seconds}});
  };
  CHECK_FALSE(run({"no-such-program-here"}).started);
  const Ended echo = run({"sh", "-c", "echo out; echo err >&2; pwd; exit 3"});
  CHECK(echo.started);
  CHECK(WEXITSTATUS(echo.status) == 3);
  CHECK(echo.output == "out\nerr\n" + folder.path().string() + "\n");
  const Ended much = run({"sh", "-c", "yes | head -c 1000000"});
  CHECK(much.output.size() == 64 << 10);
  CHECK(much.output_cut);
  CHECK(run({"sleep", "100"}, 1).out_of_time);
  const Ended busy = run({"sh", "-c", "while :; do :; done"}, 1);
  CHECK_FALSE(busy.out_of_time);
  CHECK(WTERMSIG(busy.status) == SIGXCPU);
}

// --- speed

/// Answers as a right program on a GPU would, but for what `spoil` makes of each report.
Runner program_in_place(std::vector<double> ms, std::string& order, char name,
                        std::function<void(const Job&, Report&)> spoil = nullptr) {
  return [=, &order](const std::vector<Job>& jobs) {
    order += name;
    Answers answers;
    for (const Job& job : jobs) {
      Report& report = answers.reports.emplace_back();
      report.result = plain_forward(job.inputs, job.inputs.problem.dtype);
      if (job.timed) report.ms = ms;
      if (spoil) spoil(job, report);
    }
    return answers;
  };
}

/// Cases that are checked, and one that is timed, small enough for a CPU.
struct SpeedCases {
  std::vector<Job> checked = cases_of(input_families()[0], find_stage(15), 5);
  Job timed;
  SpeedCases() {
    Problem p;
    p.q_heads = p.kv_heads = 2;
    p.Nq = p.Nk = 70;
    p.causal = true;
    timed.inputs = random_inputs(p, 1);
    timed.timed = true;
  }
};

TEST_CASE("speed is the ratio of the medians, taken in turns after a check", "[labs]") {
  const SpeedCases cases;
  std::string order;
  Speed speed = compare_speed(cases.checked, cases.timed, program_in_place({9, 2, 1}, order, 's'),
                              program_in_place({1, 1, 1}, order, 'r'));
  CHECK(speed.missing == "");
  CHECK(order == "ssrsrsr");
  CHECK(speed.ms == 2);
  CHECK(speed.ratio() == 0.5);
  speed.gpu = "NVIDIA H200";
  CHECK(words_of(speed) ==
        "Speed on this GPU (NVIDIA H200): 0.50 of the reference's, 2.000 ms to its 1.000 ms, B=1 H=2 N=70 "
        "d=64 causal fp32; no points depend on it");
}

TEST_CASE("no speed is told of what is wrong on the GPU, and why is", "[labs]") {
  const SpeedCases cases;
  std::string order;
  const auto missing = [&](std::function<void(const Job&, Report&)> student,
                           std::function<void(const Job&, Report&)> reference = nullptr) {
    const Speed speed =
        compare_speed(cases.checked, cases.timed, program_in_place({1}, order, 's', std::move(student)),
                      program_in_place({1}, order, 'r', std::move(reference)));
    return speed.missing;
  };
  const auto says = [](const std::string& text, std::string_view begin, std::string_view part) {
    INFO(text);
    CHECK(text.starts_with(begin));
    CHECK(text.find(part) != text.npos);
  };
  const std::string_view checked = "on the GPU it is wrong: B=4 H=2",
                         timed = "on the GPU it is wrong: B=1 H=2 N=70",
                         reference = "on the GPU the reference is wrong: B=1 H=2 N=70";
  says(missing([](const Job& job, Report& report) { report.result.O[0] += job.timed ? 0 : 1; }), checked,
       "the oracle says");
  says(missing([](const Job&, Report& report) { report.defect = "O was never written"; }), checked,
       "O was never written");
  says(missing([](const Job&, Report& report) {
         report.failure = Failure::exception;
         report.what = "the kernel failed on the GPU: an illegal memory access was encountered";
       }),
       checked, "an illegal memory access");
  says(missing([](const Job& job, Report& report) {
         report.result.L.back() = job.timed ? NAN : report.result.L.back();
       }),
       timed, "of its last rows, L, row 15");
  says(missing(nullptr, [](const Job&, Report& report) { report.result.O.clear(); }), reference, "");
  for (const std::vector<double>& ms :
       std::vector<std::vector<double>>{{}, {0}, {-1}, {NAN}, {1, INFINITY}})
    says(missing([&](const Job&, Report& report) { report.ms = ms; }), timed, "it sends no times");
  const auto crashed = [](const std::vector<Job>&) { return Answers{{}, "it crashed", false, ""}; };
  says(compare_speed(cases.checked, cases.timed, crashed, crashed).missing, checked, "it crashed");
}

TEST_CASE("speed is tried where all is right, and where there is a GPU", "[labs]") {
  Grade grade;
  grade.parts = {{"correct", "", {{.name = "all", .title = "", .most = 30, .feedback = ""}}}};
  const Lab cpu = find_lab(find_stage(1)), kernels = find_lab(find_stage(15));
  CHECK(speed_of(cpu, "", grade, {}).missing == "this lab is one for the CPU");
  CHECK(speed_of(kernels, "", grade, {}).missing == "not all outputs are right");
  grade.parts[0].items[0].points = 30;
  const Speed speed = speed_of(kernels, "#error no\n", grade, {.seconds = 10});
  INFO(speed.missing);
  CHECK(speed.missing.starts_with(unavailable(Backend::cuda).empty()
                                      ? "nvcc does not compile it: attention.cu:1: "
                                      : "it takes a GPU, and "));
  CHECK(words_of(speed) == "Speed is not shown: " + speed.missing);
}

#ifdef FLASHLADDER_LAB_GPU

TEST_CASE("nvcc makes a program of a lab's file, or says why not", "[labs]") {
  const Lab lab = find_lab(find_stage(15));
  const auto compile = [&](const std::string& text, const TemporaryFolder& folder) {
    return Program(*lab.stage, lab.file, text, folder.path(), {.seconds = 10}, Backend::cuda);
  };
  const TemporaryFolder folder;
  const Program program = compile(lab.source.reference, folder);
  INFO(program.compiled().log);
  REQUIRE(program.compiled().ok);
  // It runs to its end, or to the sentence that says what is missing.
  const Answers answers = program.run({SpeedCases().timed});
  REQUIRE(answers.reports.size() == 1);
  CHECK(answers.reports[0].what == unavailable(Backend::cuda));

  const std::string only_nvcc = "#ifdef __CUDACC__\n#error only g++\n#endif\n";
  const TemporaryFolder others[2];
  CHECK(compile(only_nvcc + lab.source.reference, others[0]).compiled().error ==
        "attention.cu:2: error: #error only g++");
  CHECK(compile("#ifdef __CUDACC__\nint x = nonsense;\n#endif\n", others[1]).compiled().error ==
        "attention.cu:2: error: identifier \"nonsense\" is undefined");
}

// Timings are never a condition: that there is one is.
TEST_CASE("GPU: the reference of a lab has a speed", "[gpu-lab]") {
  const Lab lab = find_lab(find_stage(15));
  Grade right;
  const Speed speed = speed_of(lab, lab.source.reference, right, {.seconds = 10});
  INFO(words_of(speed));
  CHECK(speed.missing == "");
  CHECK(speed.gpu == gpu_name());
  CHECK(speed.gpu != "");
  CHECK(speed.ms > 0);
  CHECK(std::isfinite(speed.ratio()));
  CHECK(speed.ratio() > 0);
  // What is wrong there has none.
  std::string wrong = lab.source.reference;
  const std::string row = "Lh[i] = m[a]";
  wrong.replace(wrong.find(row), row.size(), "Lh[i] = 1.f + m[a]");
  const std::string why = speed_of(lab, wrong, right, {.seconds = 10}).missing;
  INFO(why);
  CHECK(why.starts_with("on the GPU it is wrong: "));
}

#endif

TEST_CASE("text is wrapped at words, with the indentation of its own lines", "[labs]") {
  CHECK(wrapped("one two three\n  four five", "..", 9) == "..one two\n..three\n..  four\n..  five\n");
  CHECK(first_lines("a\nb\nc\n", 2) == "a\nb\n...");
  CHECK(first_lines("a\nb", 2) == "a\nb");
}

}  // namespace
