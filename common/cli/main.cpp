// The program behind ./ladder: reads the command line, runs one verb, turns errors into one sentence.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <new>
#include <type_traits>

#include "common/cli/climb.hpp"
#include "common/cli/lab.hpp"
#include "common/cli/ledger.hpp"
#include "common/cli/list.hpp"
#include "common/cli/version.hpp"
#include "common/error.hpp"
#include "common/io/terminal.hpp"

namespace {

/// "$UNSET" in a script must not run something else than was meant.
std::string not_empty(const std::string& text) {
  return text.empty() ? "is empty" : "";
}

/// All of it is a whole number of that type: one that is larger would become another.
template <class Whole>
std::string is_whole(const std::string& text) {
  Whole number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return "";
  return text + (std::is_signed_v<Whole> ? " is no whole number that it takes"
                                         : " is not a whole number below 2^64");
}

/// What CLI11 says, in words that name the option first.
std::string what_is_wrong(const CLI::ParseError& error) {
  std::string said = error.what();
  const std::string option = said.substr(0, said.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return said.find("missing") != said.npos ? option + " needs a value" : option + " can be given once";
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    constexpr std::string_view before = "Could not convert: ";
    return said.substr(said.starts_with(before) ? before.size() : 0) + " is no value that it takes";
  }
  return said;
}

/// The options that say where Q, K and V come from.
void add_input_options(CLI::App* app, flashladder::InputOptions& input, const char* input_help,
                       const char* random_help) {
  app->add_option("--input", input.npz, input_help)->type_name("FILE.npz")->check(not_empty);
  app->add_option("--q", input.q, "Queries, instead of --input")->type_name("FILE.npy")->check(not_empty);
  app->add_option("--k", input.k, "Keys")->type_name("FILE.npy")->check(not_empty);
  app->add_option("--v", input.v, "Values")->type_name("FILE.npy")->check(not_empty);
  app->add_option("--random", input.random, random_help)->type_name("B,H,N,d")->check(not_empty);
  app->add_option("--kv-heads", input.kv_heads,
                  "Key/value heads of the random input; divides H (default: H)")
      ->type_name("H")
      ->check(not_empty)
      ->check(is_whole<std::int64_t>);
  app->add_option("--key-len", input.key_len, "Keys of the random input (default: N)")
      ->type_name("N")
      ->check(not_empty)
      ->check(is_whole<std::int64_t>);
  app->add_option("--seed", input.seed, "Seed of the random input (default: 1)")
      ->check(not_empty)
      ->check(is_whole<std::uint64_t>);
  app->add_option("--dtype", input.dtype,
                  "Round the input to fp32, fp16 or bf16; a stage that does not take it gets the same "
                  "values widened to fp32 or, where it takes 16 bits alone, rounded")
      ->capture_default_str();
  app->add_option("--scale", input.scale, "Factor on the scores (default: 1/sqrt(d))")
      ->check(not_empty)
      ->check([](const std::string& text) {  // also 1e-50, which is 0 as a float
        char* end = nullptr;
        const bool zero = std::strtof(text.c_str(), &end) == 0 && end == text.c_str() + text.size();
        return std::string(zero ? text + " is 0, which would make all scores equal" : "");
      });
  app->add_option(
         "--variant", input.variant,
         "Not plain attention: window:KEYS, keys that a row sees on either side of its own, or "
         "window:LEFT:RIGHT; prefix:KEYS that all rows see; softcap:LIMIT of the scores; alibi, with "
         "the slopes of its paper; bias or bias:BATCH:HEADS:ROWS, random numbers that are added to the "
         "scores; sinks, random ones; dropout:SHARE or dropout:SHARE:SEED; "
         "documents:LENGTH, packed, each of so many rows, or documents:LENGTH:LENGTH...; blocks:SHARE or "
         "blocks:SHARE:SEED, the share of blocks of 128 rows and keys that stay, at random; several with "
         "commas between them")
      ->type_name("NAME[:VALUE]")
      ->check(not_empty);
  app->add_flag(
      "--allow-nonfinite", input.allow_nonfinite,
      "Go on although the input holds NaN or Inf; a stage whose output it reaches counts as failed");
}

/// The verb lab, which has verbs of its own.
struct LabVerbs {
  explicit LabVerbs(CLI::App& app)
      : lab(app.add_subcommand(
            "lab",
            "Labs: a stage with its idea left out, to be written and graded. What is graded runs with "
            "limits, and is given inputs only; that is no sandbox against malice, and no check for "
            "plagiarism")) {
    lab->require_subcommand(0, 1);
    lab->add_option("VERB", words,
                    "One of the verbs below");  // what is none of them is answered by no_verb
    list = lab->add_subcommand("list", "The labs: how much there is to write");
    make = lab->add_subcommand(
        "new", "Write the folder of a lab: handout, skeleton, the stage before, build file");
    make->add_option("STAGE", made.stage, "A number or a name, such as 13")->required();
    make->add_option("DIR", made.folder, "The folder to write; it must not be there yet")
        ->required()
        ->check(not_empty);
    grade = lab->add_subcommand("grade",
                                "Grade the file in a lab's folder; exit status 0 for full marks, 1 for "
                                "less, 2 where nothing was graded");
    grade->add_option("DIR", graded.folder, "A folder that 'lab new' wrote")->required()->check(not_empty);
    grade
        ->add_option("--json", graded.json,
                     "Write the result as JSON, too; - is for stdout, and nothing else there")
        ->type_name("FILE")
        ->check(not_empty);
    grade->add_option("--seed", graded.seed, "Of the inputs (default: a hash of the file)")
        ->type_name("N")
        ->check(is_whole<std::uint64_t>);
    grade
        ->add_option("--time-limit", graded.seconds,
                     "Seconds of processor time for each run of the code (default: 10)")
        ->type_name("S")
        ->check(CLI::Range(1, 3600));
    grade
        ->add_option("--memory-limit", graded.mebibytes,
                     "MiB of memory for each run of the code (default: 2048)")
        ->type_name("MIB")
        ->check(CLI::Range(256, 1 << 20));
    trace =
        lab->add_subcommand("trace",
                            "Run the kernels in a lab's folder on the emulator, once, and print what their "
                            "warps do as JSON (what ./ladder watch shows)");
    trace->add_option("DIR", traced.folder, "A folder that 'lab new' wrote")->required()->check(not_empty);
    add_input_options(trace, traced.input, "Arrays q, k, v, each [batch, heads, rows, d], instead",
                      "Normal random input of these sizes (default: 1,2,256,64)");
    trace->add_flag("--causal", traced.input.causal, "Query i sees key j when j <= i + Nk - Nq");
    trace
        ->add_option("--row", traced.row,
                     "The row of the first head whose m, l and O~ it follows (default: the last)")
        ->check(not_empty);
    check = lab->add_subcommand(
        "check",
        "Prove that skeleton, reference, the stage before, wrong kernels (tests/mutants/) and students' "
        "mistakes (tests/solutions/) get the points they should, and that these mistakes are named");
    check->add_option("STAGE", checked.stages,
                      "Stages such as 13 14, 10-15 or tensor_cores (default: all labs)");
    check
        ->add_option("--sample", checked.most,
                     "Try only N wrong kernels and N students' mistakes of each lab (default: all)")
        ->type_name("N")
        ->check(not_empty)
        ->check(is_whole<std::uint64_t>);
    check
        ->add_option("--mutants", checked.most_mutants,
                     "Try only N wrong kernels of each lab, and all mistakes (default: all)")
        ->type_name("N")
        ->check(not_empty)
        ->check(is_whole<std::uint64_t>);
    check
        ->add_option_function<std::string>(
            "--turn", [this](const std::string& text) { checked.turn = flashladder::parse_turn(text); },
            "Check a part of the labs: 2/3 is the second of three parts (default: all)")
        ->type_name("PART");
  }
  int run() const {
    using namespace flashladder::lab;
    if (lab->get_subcommands().empty()) no_verb(words);
    return list->parsed()    ? list_labs()
           : make->parsed()  ? make_lab(made)
           : grade->parsed() ? grade_lab(graded)
           : trace->parsed() ? trace_lab(traced)
                             : check_labs(checked);
  }

  CLI::App *lab, *list, *make, *grade, *trace, *check;
  std::vector<std::string> words;
  flashladder::lab::NewOptions made;
  flashladder::lab::GradeOptions graded;
  flashladder::lab::TraceOptions traced;
  flashladder::lab::CheckOptions checked;
};

int run(int argc, char** argv) {
  using namespace flashladder;
  CLI::App app{"FlashLadder: FlashAttention as a ladder of stages"};
  app.name("ladder");
  app.require_subcommand(0, 1);
  bool version = false;
  app.add_flag("--version", version, "Version and commit");

  CLI::App* list = app.add_subcommand("list", "The stages of this build: idea, claim, what each takes");
  bool as_json = false;
  std::string markdown;
  list->add_flag("--json", as_json, "As JSON");
  list->add_option("--markdown", markdown, "As the table of a README; PREFIX goes before the links")
      ->type_name("PREFIX")
      ->expected(0, 1)
      ->excludes("--json");

  CLI::App* climb = app.add_subcommand(
      "climb",
      "Run the stages on an input, check each against the one before and an fp64 oracle, time, report");
  ClimbOptions options;
  add_input_options(climb, options.input,
                    "Arrays q, k, v, each [batch, heads, rows, d] (default: a real model's layer)",
                    "Normal random input of these sizes instead");
  climb->add_flag("--causal", options.input.causal,
                  "With the causal mask only, where query i sees key j when j <= i + Nk - Nq (default: "
                  "without and with it)");
  climb->add_flag("--full", options.full, "Without a mask only");
  climb
      ->add_option(
          "STAGE,--stages", options.stages,
          "Which stages, such as 00-02, 00,02 or tensor_cores (default: all that take the head dimension)")
      ->check(not_empty);
  climb
      ->add_option(
          "--backend", options.backend,
          "Where stages of kernels run: on a GPU (cuda), or emulated on the CPU, which counts what "
          "they do but says nothing of their speed; auto: on a GPU where there is one")
      ->check(CLI::IsMember({"auto", "emulator", "cuda"}))
      ->capture_default_str();
  climb->add_option("--out", options.out, "Folder for climb.json and report.html")
      ->check(not_empty)
      ->type_name("DIR")
      ->capture_default_str();
  climb->add_flag_callback(
      "--backward", [&] { options.pass = Pass::backward; },
      "The backward pass instead of the forward pass, of the stages that have one; dO is random");
  climb
      ->add_option("--judge-within", options.patience,
                   "Judge a sample of the rows where the fp64 oracles of all take longer than this, in "
                   "seconds; not of the backward pass")
      ->type_name("S")
      ->check(not_empty)
      ->capture_default_str();
  climb->add_flag("--memory", options.memory,
                  "Also measure the peak extra memory over N, up to 64k, or 4k of the backward pass");
  climb->add_option("--memory-up-to", options.memory_up_to, "Largest N of --memory")
      ->type_name("N")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str();

  CLI::App* ledger = app.add_subcommand(
      "ledger",
      "What stages of kernels move and compute, counted exactly, side by side, with their closed forms");
  LedgerOptions counted;
  ledger->add_option("STAGE", counted.stages,
                     "Stages such as 11 12 13, 11-13 or tensor_cores (default: all of kernels)");
  ledger->add_flag_callback(
      "--backward", [&] { counted.pass = Pass::backward; },
      "The backward pass instead of the forward pass");
  add_input_options(ledger, counted.input, "Arrays q, k, v, each [batch, heads, rows, d], instead",
                    "Normal random input of these sizes (default: 1,2,256,64)");
  ledger->add_flag("--causal", counted.input.causal, "Query i sees key j when j <= i + Nk - Nq");
  ledger->add_flag("--launches", counted.launches, "A column for each kernel launch of one stage");
  ledger->add_flag("--check", counted.check,
                   "Also look for races, reads of what nobody wrote and endless loops (slow)");
  ledger->add_flag("--banks", counted.banks,
                   "Count also passes over the banks of shared memory and sectors of global memory (slow)");
  CLI::Option* json =
      ledger->add_flag("--json", counted.json, "As JSON, all counts, by stage and by launch");
  ledger
      ->add_flag("--trace", counted.trace,
                 "With --json: what all warps do, step by step, too (common/simt/README.md)")
      ->needs(json);
  ledger
      ->add_option(
          "--row", counted.row,
          "With --trace: the row of the first head whose m, l and O~ it follows (default: the last)")
      ->check(not_empty)
      ->needs("--trace");
  ledger
      ->add_option("--backend", counted.backend,
                   "cuda: run each stage once on the GPU instead, for a profiler; there is no ledger there")
      ->check(CLI::IsMember({"emulator", "cuda"}))
      ->capture_default_str();

  const LabVerbs labs(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print("{}", fit_help(app.help()));
    return 0;
  } catch (const CLI::ParseError& error) {
    std::string help = "./ladder";
    for (const CLI::App* one = &app; !one->get_subcommands().empty();) {
      one = one->get_subcommands()[0];
      help += " " + one->get_name();
    }
    // An option that is not there is why another word seems to be missing.
    const std::vector<std::string> unknown = app.remaining(true);
    const auto wrong =
        std::ranges::find_if(unknown, [](const std::string& word) { return word.starts_with("-"); });
    throw UsageError(fmt::format(
        "{} ({} --help lists the options)",
        wrong != unknown.end() ? "there is no option " + *wrong
        : !unknown.empty()
            ? (app.get_subcommands().empty() ? "there is no verb '" : "there is no place for '") +
                  unknown[0] + "'"
            : what_is_wrong(error),
        help));
  }
  if (version) {
    print("{}\n", version_text());
    return 0;
  }
  if (app.get_subcommands().empty())
    throw UsageError("name a verb: climb, ledger, list or lab (./ladder help says what they do)");
  if (list->parsed()) {
    print("{}", as_json                          ? list_json()
                : list->count("--markdown") != 0 ? list_markdown(markdown)
                                                 : list_text());
    return 0;
  }
  if (labs.lab->parsed()) return labs.run();
  return ledger->parsed() ? flashladder::ledger(counted) : flashladder::climb(options);
}

}  // namespace

int main(int argc, char** argv) {
  using flashladder::complain;
  flashladder::open_streams();
  constexpr int not_done = 2;  // 1: done, and something that was tried has failed
  int status = not_done;
  try {
    status = run(argc, argv);
  } catch (const std::bad_alloc&) {
    complain("ladder: out of memory: use smaller sizes\n");
  } catch (const std::exception& error) {
    complain("ladder: {}\n", error.what());
  }
  return flashladder::written_streams() ? status : not_done;
}
