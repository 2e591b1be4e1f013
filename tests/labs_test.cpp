// The parts of ./ladder lab, each alone: markers, handouts, what a compiler says, messages, points. The
// labs as a student meets them: lab_test.py.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>

#include "catch.hpp"
#include "common/check/inputs.hpp"
#include "common/error.hpp"
#include "common/io/whole_file.hpp"
#include "common/labs/cases.hpp"
#include "common/labs/claim.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/grade.hpp"
#include "common/labs/gradients.hpp"
#include "common/labs/mistakes.hpp"
#include "common/labs/operations.hpp"
#include "common/labs/process.hpp"
#include "common/labs/program.hpp"
#include "common/labs/rules.hpp"
#include "common/labs/source.hpp"
#include "common/labs/speed.hpp"
#include "common/labs/text.hpp"
#include "common/labs/tokens.hpp"
#include "common/labs/why.hpp"

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
  // Every stage has one but 46, which takes lines away, 48 and 49, which deal out row tiles, 50 and 51, 54
  // to 68, and of the variants, from 70 on, all but 72 and 75.
  CHECK(labs == std::ssize(stages()) - 32);
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
  CHECK(error.starts_with("there is no lab for stage 98 none: there are labs for 00-02, 10"));
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

TEST_CASE("what a block computes is read from its machine code", "[labs]") {
  const MachineCode code(
      "    10:\tmulss  %xmm0,%xmm1\n"  // before the first call: of no block
      "    14:\tcall   99 <__sanitizer_cov_trace_pc>\n"
      "    19:\tmulps  %xmm0,%xmm1\n    1c:\tvfmadd231ps %zmm0,%zmm1,%zmm2\n    22:\tjne    30 <f>\n"
      "    24:\tdivss  %xmm0,%xmm1\n    28:\tucomiss %xmm0,%xmm1\n    2b:\tjmp    40 <f>\n    2d:\taddss  "
      "%xmm0,%xmm1\n"
      "    30:\tcall   99 <__sanitizer_cov_trace_pc>\n    35:\tfmla   v0.4s, v1.4s, v2.4s\n");
  const Operations all = code.operations({{0x19, 10}, {0x35, 1}, {0x99, 5}});
  CHECK(all.on_lanes == 10 * (4 + 2 * 16) + 2 * 4);
  CHECK(all.on_single_numbers == 10 * 2);
  CHECK(all.divisions == 10);
}

TEST_CASE("a mistake is known by the outputs that it gives", "[labs]") {
  Problem p;
  p.q_heads = p.kv_heads = 1;
  p.Nq = p.Nk = 20;
  p.d = 8;
  Job job;
  job.inputs = random_inputs(p, 1);
  Result<float> result = plain_forward(job.inputs, Dtype::fp32);
  CHECK(known_mistake(job, result, 1) == "");
  Job unscaled = job;
  unscaled.inputs.problem.scale = 1;
  const Result<float> wrong = plain_forward(unscaled.inputs, Dtype::fp32);
  CHECK(known_mistake(job, wrong, 1).find("not multiplied by scale") != std::string::npos);
  const Job weights = weights_job(job);
  result = plain_forward(weights.inputs, Dtype::fp32);
  CHECK(wrong_weights(weights, result) == "");
  result.O[p.Nq * 0 + 0] = 0;
  CHECK(wrong_weights(weights, result).find("row 0 of head 0") != std::string::npos);
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
  CHECK(without(32, 64) == "O is as if the tile of keys 32 to 63 were left out.");
  CHECK(without(50, 100) == "O is as if all keys from 50 on were left out.");
  CHECK(without(0, 3) == "O is as if the first 3 keys were left out.");
  const std::string heads =
      with([](Inputs& in) { std::rotate(in.V.begin(), in.V.begin() + in.V.size() / 2, in.V.end()); });
  CHECK(heads == "O of head 0 is as if V were those of key/value head 1, and not 0.");
}

TEST_CASE(
    "what is wrong in an output under a window, or with a softcap, is told by what it would be right for",
    "[labs]") {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = 40;
  p.Nk = 70;
  p.d = 32;
  p.window = {9, 4};
  const Inputs windowed = random_inputs(p, 3);
  // O for a problem that has changed, as an answer to the one that has not.
  const auto told = [](const Inputs& inputs, auto change, auto tell) {
    Inputs other = inputs;
    change(other.problem);
    return tell(inputs, plain_forward(other, Dtype::fp32), oracle_forward(inputs));
  };
  const auto keys = [&](auto change) {
    return told(windowed, change, [](const auto&... all) { return keys_in_place(all..., 32); });
  };
  CHECK(keys([](Problem&) {}) == "");
  CHECK(keys([](Problem& x) { x.window.left = -1; }) == "O is as if a row saw all keys before its own.");
  CHECK(keys([](Problem& x) { x.window.right = 0; }) == "O is as if a row saw no key behind its own.");
  CHECK(keys([](Problem& x) { x.window.left = 8; }) == "O is as if a row saw one key less before its own.");
  CHECK(keys([](Problem& x) { x.window.right = 5; }) ==
        "O is as if a row saw one key more behind its own.");
  CHECK(keys([](Problem& x) { x.window = {4, 9}; }) == "O is as if left and right were exchanged.");
  CHECK(keys([](Problem& x) { x.window = {}; }) == "O is as if there were neither a window nor a mask.");

  p.window = {};
  p.softcap = 0.5f;
  const Inputs capped = random_inputs(p, 3);
  const auto scores = [&](auto change) {
    return told(capped, change, [](const auto&... all) { return scores_in_place(all...); });
  };
  CHECK(scores([](Problem&) {}) == "");
  CHECK(scores([](Problem& x) { x.softcap = 0; }) == "O is as if there were no softcap.");
  CHECK(scores([](Problem& x) { x.softcap = 0.25f; }) == "");
  CHECK(told(
            windowed, [](Problem& x) { x.window = {}; },
            [](const auto&... all) { return scores_in_place(all...); }) == "");
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
  // On a machine that is busy itself a second of its time takes longer than is waited for.
  CHECK((busy.out_of_time || WTERMSIG(busy.status) == SIGXCPU));
}

// --- the rules

/// The words of a text with a bar behind each; those of directives in brackets.
std::string words_in(std::string_view text) {
  std::string words;
  for (const Token& token : tokens_of(text)) {
    if (token.kind == Token::Kind::end) continue;
    words += (token.in_directive ? "[" + token.text + "]" : token.text) + "|";
  }
  return words;
}

TEST_CASE("a source is read as its compiler reads it", "[labs]") {
  CHECK(words_in("int a; // simt\n/* simt\n*/ b") == "int|a|;|b|");
  CHECK(words_in("Un\\\ncounted x\\ \ny") == "Uncounted|xy|");  // one of them with a space behind it
  CHECK(words_in("a // goes on \\\n still a comment\nb") == "a|b|");
  CHECK(words_in("\"// no comment\" + 'x' '\\'' \"\\\"\" u8\"s\"") ==
        "\"// no comment\"|+|'x'|'\\''|\"\\\"\"|\"s\"|");
  CHECK(words_in("R\"x(a)\" // \\\n)x\" b") == "\"x(a)\" // \\\n)x\"|b|");
  CHECK(words_in("1'000 0x1.8p+23f 1e-3 .5f a.b") == "1'000|0x1.8p+23f|1e-3|.5f|a|.|b|");
  CHECK(words_in(" # include <a/b.h> // c\nx # y\n%:define Z %:%: q\n") ==
        "[#]|[include]|[<a/b.h>]|x|#|y|[#]|[define]|[Z]|[##]|[q]|");
  CHECK(words_in("\xef\xbb\xbf#if 1") == "[#]|[if]|[1]|");
  CHECK(words_in("\"open\nx /* open") == "\"open|x|");
  const std::vector<Token> tokens = tokens_of("a\\\nb\n\nc /*\n*/ d");
  CHECK(tokens[0].line == 1);
  CHECK(tokens[1].line == 4);
  CHECK(tokens[2].line == 5);
}

TEST_CASE("what a lab's file may not say is found, and its line is named", "[labs]") {
  const auto refused = [](const std::string& text, int stage = 13) {
    return refused_source({find_stage(stage), "attention.cu", text});
  };
  const std::pair<const char*, const char*> cases[] = {
      {"\n  Uncounted aside;\n", "attention.cu:2: Uncounted"},
      {"Un\\\ncounted aside;", "attention.cu:1: Uncounted"},
      {"namespace s = flashladder::simt;", "simt is the inside of the emulator"},
      {"#define JOIN(a, b) a##b\n", "## puts a name together"},
      {"%:define JOIN(a, b) a %:%: b\n", "## puts a name together"},
      {"__CONCAT(si, mt)", "__CONCAT is not accepted"},
      {"#define private public\n", "#define private gives a word another meaning"},
      {"#define expf fast\n", "#define expf"},
      {"#define wgmma(C, A, B, add) nothing(C)\n", "#define wgmma gives a word another meaning"},
      {"#define registers_up registers_down\n", "#define registers_up gives a word another meaning"},
      {"#define where_to x\n#include <cmath>\n", "#define where_to stands before an #include"},
      {"#undef threadIdx\n", "#undef threadIdx takes away"},
      {"#include \"stages/12_fa2_deferred_scaling/attention.cu\"\n", "a stage is written, not included"},
      {"#include <stages/13_fa2_sequence_parallel/attention.cu>\n", "a stage is written, not included"},
      {"#include \"common/attention/oracle.hpp\"\n", "it is no part of a lab"},
      {"#include \"common/check/../attention/oracle.hpp\"\n", "not files by their paths"},
      {"#include \"/etc/passwd\"\n", "not files by their paths"},
      {"#include <common/labs/program/message.hpp>\n", "it is no part of a lab"},
      {"#include FILE\n", "#include names its file by a macro"},
      {"#if __has_include(\"/etc/passwd\")\n#endif\n", "__has_include is not accepted"},
      {"const char data[] = {\n#embed \"x\"\n};", "#embed is none of the directives"},
      {"#line 5 \"common/simt/memory.hpp\"\n", "#line is none of the directives"},
      {"#pragma GCC poison f32\n", "#pragma GCC is not accepted"},
      {"#pragma redefine_extname f g\n", "#pragma redefine_extname is not accepted"},
      {"_Pragma(\"weak f\")", "_Pragma is not accepted"},
      {"#pragma GCC optimize(\"O3\")\n", "#pragma GCC is not accepted"},
      {"[[gnu::no_sanitize(\"thread\")]] void f();", "no_sanitize is not accepted"},
      {"__attribute__((optimize(\"O3\"))) void f();", "optimize is not accepted"},
      {"asm(\"syscall\");", "asm is not accepted"},
      {"void f() __asm__(\"fork\");", "asm is not accepted"},
      {"extern \"C\" int fork();", "extern \"C\" is not accepted"},
      {"void f() { flashladder::stage_12::stage.forward(call); }", "stage_12 is another stage"},
      {"x.Q.download(q.data());", "download is not accepted"},
      {"x.O.upload(o.data());", "upload is not accepted"},
      {"Qh.buffer()->data;", "buffer leads to the memory behind"},
      {"x.Q.emulated().data;", "emulated leads to the memory behind"},
      {"template struct Steal<&smem_tile::data_>;", "data_ is a private member"},
      {"Counted::reads = 0;", "Counted counts the reads"},
      {"Workspace mine(1 << 30);", "a workspace of its own"},
      {"Workspace::Reservation back(f.workspace, -4096);", "Reservation is not accepted"},
      {"float* s = (float*)alloca(n);", "alloca takes memory"},
      {"struct Look { float* data; };\nauto* x = reinterpret_cast<const Look*>(&K);",
       "attention.cu:2: reinterpret_cast"},
      {"auto raw = reinterpret_cast<float**>(&K)[1];", "reinterpret_cast to a class of its own"},
      {"struct Look { float* data; };\nauto* x = (const Look*)&K;", "a cast to a class of its own"},
      {"const auto* at = &blockIdx;", "the address of blockIdx"},
      {"void f() { throw 0; }", "throw is not accepted"},
      {"void f() { try { g(); } catch (...) {} }", "try is not accepted"},
      {"#pragma omp parallel for\n", "#pragma omp is not accepted"},
      {"std::cout.iword(3) = 1;", "iword is memory of a stream"},
      {"auto x = _mm_loadu_ps(K);", "_mm_loadu_ps is not accepted"},
      {"sQ.at(r, c, simt_where); Where w;", "Where is the place of a call"},
  };
  for (const auto& [text, says] : cases) {
    const std::string why = refused(text);
    INFO(text);
    CHECK(why.find(says) != std::string::npos);
    CHECK(why.starts_with("attention.cu:"));
  }
  // Stage 11 has one launch that is not counted.
  const std::string given = find_lab(find_stage(11)).source.reference;
  for (const auto& [old, changed] :
       {std::pair{"  for_head_dim<f32", "  const Uncounted all;\n  for_head_dim<f32"},
        {"  const Uncounted aside;\n", "  const Uncounted aside;\n  run();\n"},
        {"m[i] + logf(l[i])", "whole(m, i)"},
        {"void forward(", "#define logsumexp whole\nvoid forward("},
        {"  const Uncounted", "  const auto logsumexp = whole;\n  const Uncounted"}}) {
    std::string text = given;
    REQUIRE(text.find(old) != text.npos);
    text.replace(text.find(old), std::strlen(old), changed);
    INFO(changed);
    CHECK(refused(text, 11).find("Uncounted is accepted around the launch of logsumexp only") != text.npos);
  }
  // Of a stage's own headers its kernel is what the student writes.
  CHECK(refused("#include \"stages/29_tuned/table.hpp\"\n", 29) == "");
  CHECK(refused("#include \"stages/29_tuned/./kernel.hpp\"\n", 29)
            .ends_with("a stage is written, not included: no source of a stage is part of a lab"));
  // Of a variant its policy, and the kernels that it is for are given.
  for (const char* given :
       {"#include \"stages/70_policies/policy.hpp\"\n",
        "#include \"stages/71_policies_backward/kernel.hpp\"\n", "stage_70::Plain<true> p;"}) {
    CHECK(refused(given, 72) == "");
    CHECK(refused(given, 13) != "");
  }
  for (const char* own : {"policy", "launch"}) {
    CHECK(refused(fmt::format("#include \"stages/72_sliding_window/{}.hpp\"\n", own), 72)
              .ends_with("no source of a stage is part of a lab"));
  }
  CHECK(refused("#include \"stages/80_together/policy.hpp\"\n", 72) != "");
  CHECK(refused("stage_80::SoftcapIfAny x;", 75).ends_with("those that its skeleton names"));
  CHECK(refused(std::string("int a;\n\0", 8)).starts_with("attention.cu:2: it is no plain text"));
  CHECK(refused(std::string(most_source_bytes + 1, ' '))
            .starts_with("attention.cu: it has more than 1024 KiB"));
}

TEST_CASE("no word of the vocabulary gets another meaning", "[labs]") {
  const std::string page = text_of(std::filesystem::path(FLASHLADDER_SOURCE_DIR) / "docs/vocabulary.md");
  std::set<std::string> words;
  std::istringstream lines(page.substr(0, page.find("## One kernel, complete")));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    // The words of a row: `gmem<T>`; `load4(p)`, `store4(p, v)`; `auto&& P = dynamic_tile<T, R,
    // C>(offset);`.
    const std::string first = line.substr(2, line.find(" | ", 2) - 2);
    for (std::size_t begin = 0; (begin = first.find('`', begin)) != first.npos;) {
      const std::size_t end = first.find('`', begin + 1);
      const std::string code = first.substr(begin + 1, end - begin - 1);
      begin = end + 1;
      if (code.starts_with(".") || code.ends_with(".hpp") || code.starts_with("descriptor")) continue;
      const auto is_of_word = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
      };
      const std::size_t stop = std::min(code.find_first_of("<("), code.size());
      std::size_t start = stop;
      while (start > 0 && is_of_word(code[start - 1])) --start;
      const std::string word = code.substr(start, stop - start);
      if (word != "swizzle") words.insert(code.starts_with("Uncounted") ? "Uncounted" : word);
    }
  }
  CHECK(words.size() >= 75);
  for (const char* one : {"f32", "smem_array", "dynamic_tile", "store4", "mma_m16n8k16", "mbarrier_wait",
                          "tma_load", "wgmma", "registers_up", "Panels", "launch"})
    CHECK(words.contains(one));
  for (const std::string& word : words) {
    const std::string why = refused_source({find_stage(43), "attention.cu", "#define " + word + " 1\n"});
    INFO(word << ": " << why);
    CHECK(why.find(word + " gives a word another meaning") != why.npos);
  }
}

TEST_CASE("what a kernel's counters count is said in words", "[labs]") {
  for (const auto& [name, count] : simt::Ledger().entries()) {
    INFO(name);
    if (name.find('_') != name.npos) CHECK(words_of_counter(name) != name);
  }
  CHECK(words_of_counter("wgmma_bytes_in_flight") ==
        "bytes of copies under way, added up over the wgmmas of each warp");
  CHECK(words_of_counter("global.K.read_elements") == "elements of K read from global memory");
}

TEST_CASE("honest files are accepted: all stages that are labs, and what students may write", "[labs]") {
  for (const Stage* stage : stages()) {
    if (!has_lab(*stage)) continue;
    const Lab lab = find_lab(*stage);
    CHECK(refused_source({*stage, lab.file, lab.source.reference}) == "");
    CHECK(refused_source({*stage, lab.file, lab.source.skeleton}) == "");
  }
  for (const char* text :
       {"#include <algorithm>\n#include <vector>\n#include <chrono>\n#include <immintrin.h>\n",
        "#include \"common/kernel/host.hpp\"\n#include \"common/ptx/mma.hpp\"\n",
        "#define NDEBUG\n#include <cassert>\n#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))\n#undef "
        "CEIL_DIV\n",
        "#ifdef __CUDACC__\n#define HOST __host__\n#else\n#define HOST\n#endif\n",
        "#pragma unroll 4\n#pragma GCC unroll 8\n#pragma once\n",
        "// simt, Uncounted, asm, extern \"C\"\n/* #include \"/etc/passwd\" */ const char* s = \"simt "
        "asm\";",
        "// na\xefve, saved as Latin-1\n",
        "f32 running = 0.f, buffer[4], data_ = 1; float upload = 2, download = upload;",
        "struct Buffers { f32 data_[2]; int at() { return this->data_[0]; } }; auto p = &Buffers::data_;",
        "unsigned both = reinterpret_cast<const unsigned&>(h[0]); float4* v = "
        "reinterpret_cast<float4*>(x);",
        "auto bits = std::bit_cast<std::uint32_t>(1.f); auto& w = const_cast<float&>(x);",
        "static constexpr f32 table[] = {1.f, 2.f}; auto f = [&](int i) { return table[i]; };",
        "float* scratch(Workspace& workspace) { return workspace.array<float>(3).data(); }",
        "using flashladder::Workspace; template <class T> requires(sizeof(T) == 4) T twice(T x) { return x "
        "+ x; }",
        "__device__ __forceinline__ f32 g(f32 x) { return __expf(x); } __attribute__((noinline)) int h();",
        "std::printf(\"%d\\n\", __LINE__); assert(x > 0 && \"positive\");"}) {
    INFO(text);
    CHECK(refused_source({find_stage(13), "attention.cu", text}) == "");
  }
}

TEST_CASE("cheats that can be read are refused, and told why", "[labs]") {
  int refused = 0, all = 0;
  const std::filesystem::path sources = FLASHLADDER_SOURCE_DIR;
  for (const auto& entry : std::filesystem::directory_iterator(sources / "tests/cheats")) {
    const Lab lab = find_lab(find_stage(std::stoi(entry.path().filename().string())));
    const TemporaryFolder folder;
    const std::filesystem::path original = folder.path() / "original", result = folder.path() / lab.file;
    write_file(original, source_of(*lab.stage));
    const Ended patched =
        run_program({.command = {"patch", "--batch", "--fuzz=0", "--output=" + result.string(),
                                 original.string(), entry.path().string()},
                     .folder = folder.path()});
    INFO(entry.path().filename().string() << ": " << patched.output);
    REQUIRE(patched.status == 0);
    std::string why = refused_source({*lab.stage, lab.file, read_source(text_of(result), "").reference});
    ++all;
    if (why.empty()) continue;  // what the compiler made of it is looked at by ./ladder lab check
    ++refused;
    for (char& c : why) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::istringstream lines(text_of(entry.path()));
    std::string line;
    while (!line.starts_with("Named by: ")) REQUIRE(std::getline(lines, line));
    INFO(why);
    CHECK(why.find(line.substr(10)) != std::string::npos);
  }
  CHECK(all >= 30);
  CHECK(refused >= 20);
}

/// What is said of the object file of a text.
std::string refused_compiled(const std::string& text) {
  const TemporaryFolder folder;
  write_file(folder.path() / "attention.cpp", text);
  const Ended ended = run_program(
      {.command = {"c++", "-std=c++20", "-O1", "-fPIC", "-c", "attention.cpp"}, .folder = folder.path()});
  INFO(ended.output);
  REQUIRE(ended.status == 0);
  return refused_object({find_stage(1), "attention.cpp", text}, folder.path() / "attention.o", false);
}

TEST_CASE("what an object file refers to, defines and keeps is held against what a stage needs", "[labs]") {
  const std::pair<const char*, const char*> cases[] = {
      {"int fork();\nextern \"C\" int getpid();\nint f() {\n  return getpid();\n}",
       "attention.cpp:2: getpid is not for a stage to call"},
      {"#include <cstdlib>\nconst char* f() { return std::getenv(\"SEED\"); }",
       "getenv is not for a stage"},
      {"#include <cstdio>\nvoid* f() { return std::fopen(\"/proc/self/maps\", \"r\"); }", "fopen is not"},
      {"namespace std { struct thread { void join(); }; }\nvoid f(std::thread& t) { t.join(); }",
       "std::thread::join() is not for a stage"},
      {"namespace flashladder { void oracle(); }\nvoid f() { flashladder::oracle(); }",
       "flashladder::oracle() is no part of a lab"},
      {"namespace flashladder::stage_00 { void forward(); }\nvoid f() { flashladder::stage_00::forward(); "
       "}",
       "flashladder::stage_00::forward() is no part of a lab"},
      {"int f() {\n  static int calls = 0;\n  return ++calls;\n}",
       "attention.cpp:2: f()::calls would outlive a call"},
      {"thread_local float cache[8];\nfloat* f() { return cache; }", "cache would outlive a call"},
      {"inline int kept = 3;\nint* f() { return &kept; }", "kept would outlive a call"},
      {"[[gnu::constructor]] void f() {}", "runs before its first call"},
      {"extern \"C\" void* malloc(unsigned long) { return nullptr; }",
       "malloc takes the place of something that is not this file's"},
      {"void operator delete(void*) noexcept {}", "operator delete(void*) takes the place of"},
      {"namespace flashladder { struct Problem { float softmax_scale() const; };\n"
       "float Problem::softmax_scale() const { return 1; } }",
       "flashladder::Problem::softmax_scale() const takes the place of"},
      {"#include <new>\nvoid* f() { return operator new(8, std::align_val_t(64), std::nothrow); }",
       "is not for a stage to call"},
  };
  for (const auto& [text, says] : cases) {
    const std::string why = refused_compiled(text);
    INFO(text);
    INFO(why);
    CHECK(why.find(says) != std::string::npos);
  }
  CHECK(refused_compiled(
            "#include <algorithm>\n#include <cassert>\n#include <cmath>\n#include <cstdio>\n"
            "#include <iostream>\n#include <map>\n#include <stdexcept>\n#include <string>\n"
            "#include <vector>\n"
            "namespace { constexpr float table[] = {1, 2}; const char* const names[] = {\"a\", \"b\"};\n"
            "const float root = std::sqrt(2.0f); }\n"
            "struct Shape { virtual float area() const { return 1; } virtual ~Shape() = default; };\n"
            "template <class T> T twice(T x) { return x + x; }\n"
            "float f(int i, const Shape& shape) {\n"
            "  std::vector<float> s(i, table[i]); std::map<int, std::string> m{{1, names[i]}};\n"
            "  std::sort(s.begin(), s.end()); std::printf(\"%g\\n\", s[0]); std::cout << m[1];\n"
            "  assert(i > 0); if (i > 7) throw std::runtime_error(std::to_string(i));\n"
            "  const auto g = [&](float x) { return std::exp(x) + std::tanh(x) + root; };\n"
            "  return twice(g(s[0])) + shape.area() + std::fma(s[0], 2.0f, std::log2(s[1]));\n}\n") == "");
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

// --- what wrong gradients say of the mistake

/// A job of a backward pass, two query heads to one key/value head, and its right gradients.
struct GradientCase {
  Job job;
  Gradients<double> oracle;

  explicit GradientCase(bool causal) {
    Problem p;
    p.q_heads = 2;
    p.Nq = 40;
    p.Nk = 48;
    p.d = 32;
    p.causal = causal;
    job.pass = Pass::backward;
    job.inputs = random_inputs(p, 3);
    const Stage& stage = find_stage(31);
    job.given = backward_inputs(stage, job.inputs, saved_forward(job.inputs), random_output_gradient(p, 4));
    oracle = oracle_backward_from(job.inputs, job.given.forward, job.given.dO);
  }
  Gradients<float> right() const {
    return {{oracle.dQ.begin(), oracle.dQ.end()},
            {oracle.dK.begin(), oracle.dK.end()},
            {oracle.dV.begin(), oracle.dV.end()}};
  }
  std::string said(const Gradients<float>& got) const {
    const ClaimedTile tile{.Br = 32, .Bc = 32};
    return gradients_wrong(job, got, oracle) + "\n" + gradient_mistake(job, got, oracle, tile);
  }
  /// The gradients of a problem with other inputs, of which O and L are those given.
  Gradients<float> with(const Inputs& inputs, const Result<float>& saved,
                        const std::vector<float>& dO) const {
    const Gradients<double> x = oracle_backward_from(inputs, saved, dO);
    return {{x.dQ.begin(), x.dQ.end()}, {x.dK.begin(), x.dK.end()}, {x.dV.begin(), x.dV.end()}};
  }
};

TEST_CASE("right gradients have no mistake", "[labs]") {
  const GradientCase x(true);
  CHECK(x.said(x.right()) == "\n");
}

TEST_CASE("a wrong gradient is told by where it is wrong, and by what gives it", "[labs]") {
  const auto scaled = [](std::vector<float> values, double factor) {
    for (float& value : values) value = static_cast<float>(value * factor);
    return values;
  };
  const GradientCase x(true);
  const double scale = x.job.inputs.problem.softmax_scale();
  const auto says = [&](const Gradients<float>& got, const std::string& where, const std::string& what) {
    const std::string said = x.said(got);
    INFO(said);
    CHECK(said.find(where) != std::string::npos);
    CHECK(said.find(what) != std::string::npos);
  };
  Gradients<float> got = x.right();
  got.dQ = scaled(got.dQ, 1 / scale);
  says(got, "dK and dV are right. All of dQ is wrong.", "\ndQ is as if the scale were left out.");
  got.dK = scaled(got.dK, 1 / scale);
  says(got, "dV is right.", "\ndQ and dK are as if the scale were left out.");
  got = x.right();
  got.dV = scaled(got.dV, scale);
  says(got, "dQ and dK are right.", "dV is as if it were multiplied by the scale, which is for dQ and dK.");
  got = x.right();
  got.dK = scaled(got.dK, -1);
  says(got, "All of dK is wrong", "dK has the wrong sign.");
  got = x.right();
  got.dV = scaled(got.dV, 0);
  says(got, "All of dV is wrong", "dV is 0 everywhere.");

  Result<float> without_D = x.job.given.forward;  // D = rowsum(dO * O) is 0 with it
  std::ranges::fill(without_D.O, 0.f);
  says(x.with(x.job.inputs, without_D, x.job.given.dO), "dV is right.",
       "dQ and dK are as if D were left out.");

  Inputs unmasked = x.job.inputs;
  unmasked.problem.causal = false;
  says(x.with(unmasked, x.job.given.forward, x.job.given.dO), "",
       "dQ, dK and dV are as if there were no mask.");

  got = x.right();
  got.dK[5 * 32 + 7] = 100;
  says(got, "dQ and dV are right. Wrong in dK: column 7, key 5 only.", "");
  got.dK[5 * 32 + 7] = NAN;
  says(got, "NaN comes from", "");

  std::vector<float> second_alone = x.job.given.dO;  // the first query head adds nothing then
  std::fill_n(second_alone.begin(), second_alone.size() / 2, 0.f);
  Result<float> saved = x.job.given.forward;
  got = x.right();
  got.dV = x.with(x.job.inputs, saved, second_alone).dV;
  says(got, "dQ and dK are right.", "dV is as if only the last query head of each group were in it.");
}

}  // namespace
