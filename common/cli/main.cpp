// The program behind ./ladder: reads the command line, runs one verb, turns errors into one sentence.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>

#include "common/attention/error.hpp"
#include "common/cli/climb.hpp"
#include "common/cli/list.hpp"

namespace {

int run(int argc, char** argv) {
  using namespace flashladder;
  CLI::App app{"FlashLadder: FlashAttention as a ladder of stages"};
  app.name("ladder");
  app.require_subcommand(1);

  // "$UNSET" in a script must not run something else than was meant.
  const auto not_empty = [](const std::string& text) {
    return std::string(text.empty() ? "is empty" : "");
  };

  CLI::App* list = app.add_subcommand("list", "The stages of this build: idea, claim, what each takes");
  bool as_json = false;
  std::string markdown;
  list->add_flag("--json", as_json, "As JSON");
  list->add_option("--markdown", markdown, "As the table of a README; PREFIX goes before the links")
      ->type_name("PREFIX")
      ->expected(0, 1);

  CLI::App* climb = app.add_subcommand(
      "climb",
      "Run the stages on an input, check each against the one before and an fp64 oracle, time, report");
  ClimbOptions options;
  InputOptions& input = options.input;
  climb
      ->add_option("--input", input.npz,
                   "Arrays q, k, v, each [batch, heads, rows, d] (default: a real model's layer)")
      ->type_name("FILE.npz")
      ->check(not_empty);
  climb->add_option("--q", input.q, "Queries, instead of --input")->type_name("FILE.npy")->check(not_empty);
  climb->add_option("--k", input.k, "Keys")->type_name("FILE.npy")->check(not_empty);
  climb->add_option("--v", input.v, "Values")->type_name("FILE.npy")->check(not_empty);
  climb->add_option("--random", input.random, "Normal random input of these sizes instead")
      ->type_name("B,H,N,d")
      ->check(not_empty);
  climb
      ->add_option("--kv-heads", input.kv_heads,
                   "Key/value heads of the random input; divides H (default: H)")
      ->type_name("H");
  climb->add_option("--key-len", input.key_len, "Keys of the random input (default: N)")->type_name("N");
  climb->add_option("--seed", input.seed, "Seed of the random input (default: 1)")
      ->check([](const std::string& text) {
        return std::string(text.starts_with("-") ? "must not be negative" : "");
      });
  climb
      ->add_option("--dtype", input.dtype,
                   "Round the input to fp32, fp16 or bf16; a stage that computes in fp32 gets the same "
                   "values widened")
      ->capture_default_str();
  climb->add_flag("--causal", input.causal, "Query i sees key j when j <= i + Nk - Nq");
  climb->add_option("--scale", input.scale, "Factor on the scores (default: 1/sqrt(d))")
      ->check([](const std::string& text) {
        return std::string(text == "0" ? "0 would make all scores equal" : "");
      });
  climb->add_flag(
      "--allow-nonfinite", input.allow_nonfinite,
      "Go on although the input holds NaN or Inf; a stage whose output it reaches counts as failed");
  climb->add_option("--stages", options.stages, "Which stages, such as 00-02 or 00,02 (default: all)")
      ->check(not_empty);
  climb->add_option("--out", options.out, "Folder for climb.json and report.html")
      ->check(not_empty)
      ->type_name("DIR")
      ->capture_default_str();
  climb->add_flag("--memory", options.memory, "Also measure the peak extra memory over N, up to 64k");
  climb->add_option("--memory-up-to", options.memory_up_to, "Largest N of --memory")
      ->type_name("N")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw UsageError(
        fmt::format("{} (./ladder {} --help lists the options)", error.what(),
                    app.get_subcommands().empty() ? "help" : app.get_subcommands()[0]->get_name()));
  }
  if (list->parsed()) {
    fmt::print("{}", as_json                          ? list_json()
                     : list->count("--markdown") != 0 ? list_markdown(markdown)
                                                      : list_text());
    return 0;
  }
  return flashladder::climb(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const flashladder::UsageError& error) {
    fmt::print(stderr, "ladder: {}\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "ladder: out of memory: use smaller sizes\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "ladder: {}\n", error.what());
    return 1;
  }
}
