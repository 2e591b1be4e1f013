#include "common/cli/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/check/count.hpp"
#include "common/check/inputs.hpp"
#include "common/check/run.hpp"
#include "common/error.hpp"
#include "common/io/terminal.hpp"

namespace flashladder {
namespace {

using Json = nlohmann::ordered_json;
using simt::Ledger;

/// What was counted of one stage.
struct CountedStage {
  const Stage* stage;
  const Claim* claim;
  Pass pass;                  ///< That was counted.
  Forms<ClosedForm> claimed;  ///< For it.
  std::vector<Ledger> launches;
  Ledger total;
  simt::Trace trace;  ///< Where it was asked for.

  Symbols symbols(const Problem& problem) const { return claim->symbols(problem, pass); }
};

CountedStage count_stage(const Stage& stage, const Inputs& inputs, Pass pass, const simt::Options& how) {
  const Claim* claim = claim_of(stage);
  CountedStage counted{&stage, claim, pass, {}, {}, {}, {}};
  if (claim != nullptr) counted.claimed = claim->of(pass);
  try {
    counted.total =
        (pass == Pass::backward ? count_backward : count_forward)(stage, inputs, how, &counted.launches);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw Error(fmt::format("stage {}: {}", label(stage), error.what()));
  }
  return counted;
}

/// The chosen stages in the order in which they were named.
std::vector<const Stage*> chosen_stages(const std::vector<std::string>& selections, Pass pass) {
  std::vector<const Stage*> chosen;
  for (const std::string& selection : selections) {
    for (const Stage* stage : select_stages(selection)) {
      if (stage->backend == Backend::cpu) {
        throw UsageError(fmt::format(
            "stage {} is C++ for the CPU and has no ledger: choose stages of kernels, such as 10-15",
            label(*stage)));
      }
      if (!stage->has(pass)) {
        throw UsageError(fmt::format("stage {} has no {} pass: {} --backward, or choose other stages",
                                     label(*stage), to_string(pass),
                                     pass == Pass::backward ? "leave out" : "add"));
      }
      if (std::ranges::find(chosen, stage) == chosen.end()) chosen.push_back(stage);
    }
  }
  if (selections.empty()) {
    std::ranges::copy_if(stages(), std::back_inserter(chosen), [&](const Stage* stage) {
      return stage->backend != Backend::cpu && stage->has(pass);
    });
  }
  return chosen;
}

std::int64_t operations(const Ledger& l) {
  return static_cast<std::int64_t>(l.add + l.mul + l.div + l.max + l.exp + l.log);
}
std::int64_t hbm_read(const Ledger& l) {
  const simt::GlobalTraffic all = l.global_total();
  return static_cast<std::int64_t>(all.read_bytes + all.atomic_bytes);
}
std::int64_t hbm_written(const Ledger& l) {
  const simt::GlobalTraffic all = l.global_total();
  return static_cast<std::int64_t>(all.written_bytes + all.atomic_bytes);
}

// --- the table

/// A row: a count, and the counter of the closed form that says the same in units of `form_unit`.
struct Row {
  std::string label;
  std::function<std::int64_t(const Ledger&)> count;
  std::string counter;
  std::int64_t form_unit = 1;
};

Row row_of(const std::string& label, const std::string& counter) {
  return {label, [counter](const Ledger& l) { return count_of(l, counter); }, counter};
}

/// All rows that these stages may need, in order.
std::vector<Row> rows_for(const std::vector<CountedStage>& all, bool banks) {
  std::set<std::string> buffers, arrays;
  for (const CountedStage& one : all) {
    for (const auto& [name, traffic] : one.total.global) buffers.insert(name);
    for (const auto& [name, traffic] : one.total.shared) arrays.insert(name);
  }
  std::vector<Row> rows;
  for (const auto& [what, words] : {std::pair("read", "elements read"),
                                    {"written", "elements written"},
                                    {"atomic", "elements added atomically"}}) {
    for (const std::string& name : buffers)
      rows.push_back(
          row_of(fmt::format("{} {}", name, words), fmt::format("global.{}.{}_elements", name, what)));
  }
  rows.push_back({"global bytes read", hbm_read, "", 1});
  rows.push_back({"global bytes written", hbm_written, "", 1});
  if (banks) {
    for (const std::string& name : buffers) {
      rows.push_back(row_of(name + " sectors", "global." + name + ".sectors"));
      rows.push_back(row_of(name + " sectors, ideal", "global." + name + ".ideal_sectors"));
    }
  }
  for (const char* what : {"read", "written"}) {
    for (const std::string& name : arrays) {
      // Closed forms say it in elements of 4 bytes.
      Row row = row_of(fmt::format("shared {} bytes {}", name, what),
                       fmt::format("shared.{}.{}_bytes", name, what));
      row.counter = fmt::format("shared.{}.{}_elements", name, what);
      row.form_unit = 4;
      rows.push_back(row);
    }
  }
  const auto shared = [](auto member) {
    return [member](const Ledger& l) { return static_cast<std::int64_t>(l.shared_total().*member); };
  };
  rows.push_back({"shared bytes read", shared(&simt::SharedTraffic::read_bytes), "", 1});
  rows.push_back({"shared bytes written", shared(&simt::SharedTraffic::written_bytes), "", 1});
  if (banks) {
    for (const std::string& name : arrays) {
      rows.push_back(row_of(fmt::format("shared {} wavefronts", name), "shared." + name + ".wavefronts"));
      rows.push_back(
          row_of(fmt::format("shared {} wavefronts, ideal", name), "shared." + name + ".ideal_wavefronts"));
    }
    rows.push_back({"shared wavefronts", shared(&simt::SharedTraffic::wavefronts), "", 1});
    rows.push_back({"shared wavefronts, ideal", shared(&simt::SharedTraffic::ideal_wavefronts), "", 1});
  }
  for (const auto& [words, counter] : {std::pair("barriers", "barriers"),
                                       {"named barriers", "named_barriers"},
                                       {"shuffles", "shuffles"},
                                       {"syncwarps", "syncwarps"},
                                       {"atomics", "atomics"},
                                       {"asynchronous copies", "async_copies"},
                                       {"most bytes in flight", "most_bytes_in_flight"},
                                       {"matmul FLOPs, CUDA cores", "flops_cuda_cores"},
                                       {"matmul FLOPs, tensor cores", "flops_tensor_cores"},
                                       {"those while copies are under way", "flops_during_copies"},
                                       {"add", "add"},
                                       {"mul", "mul"},
                                       {"div", "div"},
                                       {"max", "max"},
                                       {"of add and mul, fused", "fma"},
                                       {"exp", "exp"},
                                       {"of exp, to base 2", "exp2"},
                                       {"most exp of a thread before a product", "most_exp_before_product"},
                                       {"log", "log"},
                                       {"tiles", "tiles"},
                                       {"masked tiles", "masked_tiles"},
                                       {"blocks", "blocks"},
                                       {"shared bytes per block", "shared_bytes_per_block"},
                                       {"extra device memory, bytes", "device_bytes"}})
    rows.push_back(row_of(words, counter));
  // No closed form goes unseen because the rows above did not think of its counter.
  for (const CountedStage& one : all) {
    for (const ClosedForm& form : one.claimed.forms) {
      if (std::ranges::find(rows, form.counter, &Row::counter) == rows.end())
        rows.push_back(row_of(std::string(form.counter), std::string(form.counter)));
    }
  }
  return rows;
}

/// "x0.50" of the count before; "" where both are 0.
std::string ratio_text(std::int64_t count, std::int64_t before) {
  if (before == 0) return count == 0 ? "" : "new";
  if (count == 0) return "x0";
  const double ratio = static_cast<double>(count) / static_cast<double>(before);
  return ratio < 0.095 ? fmt::format("x{:.2g}", ratio) : fmt::format("x{:.{}f}", ratio, ratio < 10 ? 2 : 1);
}

/// A column of the table: a stage, or a launch of one.
struct Column {
  std::string title;
  const Ledger* ledger;
  const CountedStage* stage;  ///< Whose closed forms stand beside the counts; nullptr: none.
  const Ledger* before;       ///< What ratios are to; nullptr: none.
};

/// The lines of the cell: count and ratio, then the closed form.
std::vector<std::string> cell_of(const Row& row, const Column& column, const Problem& problem,
                                 std::size_t count_width) {
  const std::int64_t count = row.count(*column.ledger);
  std::string first = fmt::format("{:>{}}", grouped(count), count_width);
  if (column.before != nullptr) first += "  " + ratio_text(count, row.count(*column.before));
  std::vector<std::string> lines = {first};
  const ClosedForm* form =
      column.stage == nullptr || row.counter.empty() ? nullptr : column.stage->claimed.find(row.counter);
  if (form == nullptr) return lines;
  const std::int64_t expected = row.form_unit * form->value(column.stage->symbols(problem));
  std::string text =
      row.form_unit == 1 || expected == 0 ? form->text() : (row.form_unit * form->count).text();
  text = expected == count                 ? "= " + text
         : form->least && expected < count ? ">= " + text
                                           : fmt::format("!!! not {} = {}", grouped(expected), text);
  for (const std::string& line : wrap(text, 26, "  ")) lines.push_back(line);
  return lines;
}

std::string table(const std::vector<Row>& rows, const std::vector<Column>& columns,
                  const Problem& problem) {
  std::vector<std::size_t> count_width;
  for (const Column& column : columns) {
    std::size_t& width = count_width.emplace_back(0);
    for (const Row& row : rows) width = std::max(width, grouped(row.count(*column.ledger)).size());
  }
  std::vector<std::vector<std::string>> lines = {{"counter"}};
  for (const Column& column : columns) lines[0].push_back(column.title);
  for (const Row& row : rows) {
    std::vector<std::vector<std::string>> cells = {{row.label}};
    std::size_t height = 1;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      cells.push_back(cell_of(row, columns[c], problem, count_width[c]));
      height = std::max(height, cells.back().size());
    }
    for (std::size_t line = 0; line < height; ++line) {
      std::vector<std::string>& texts = lines.emplace_back();
      for (const auto& cell : cells) texts.push_back(line < cell.size() ? cell[line] : "");
    }
  }
  return fit_table(lines, columns.size() + 1, terminal_width());
}

/// What the symbols of the closed forms are here.
std::string symbols_text(const std::vector<CountedStage>& all, const Problem& problem) {
  std::set<std::pair<std::int64_t, std::int64_t>> tiles;
  for (const CountedStage& one : all) {
    if (one.claim == nullptr) continue;
    const Symbols n = one.symbols(problem);
    tiles.insert({n.Br, n.Bc});
  }
  const bool with_kv_heads = std::ranges::any_of(all, [](const CountedStage& one) {
    return std::ranges::any_of(one.claimed.forms, [](const ClosedForm& form) {
      return form.text().find("BHkv") != std::string::npos;
    });
  });
  std::string text;
  for (const auto& [Br, Bc] : tiles) {
    const Symbols n(problem, {.Br = Br, .Bc = Bc});
    if (text.empty()) {
      text = fmt::format("BH = {}, {}Nq = {}, Nk = {}, d = {}", n.BH,
                         with_kv_heads ? fmt::format("BHkv = {}, ", n.BHkv) : "", n.Nq, n.Nk, n.d);
    }
    text += fmt::format("; Br = {}, Bc = {}, Tr = {}, Tc = {}", Br, Bc, n.Tr, n.Tc);
  }
  return text + ";\n  live_i and whole_i: see docs/glossary.md; R: see claim.cpp of the stage";
}

bool holds(const CountedStage& one, const ClosedForm& form, const Problem& problem) {
  return form.holds(count_of(one.total, form.counter), one.symbols(problem));
}

/// Whether the numbers of this problem need more than random ones, somewhere.
bool has_more(const CountedStage& one, const Problem& problem) {
  return std::ranges::any_of(one.claimed.forms, [&](const ClosedForm& form) {
    return form.least && count_of(one.total, form.counter) > form.value(one.symbols(problem));
  });
}

void print_table(const std::vector<CountedStage>& all, const LedgerOptions& options,
                 const LoadedInputs& loaded) {
  const Problem& problem = loaded.inputs.problem;
  std::vector<Column> columns;
  if (options.launches) {
    for (const Ledger& launch : all[0].launches)
      columns.push_back({launch.kernel, &launch, nullptr, nullptr});
  }
  for (const CountedStage& one : all)
    columns.push_back({label(*one.stage), &one.total, &one,
                       columns.empty() || options.launches ? nullptr : columns.back().ledger});

  std::vector<Row> rows = rows_for(all, options.banks);
  std::erase_if(rows, [&](const Row& row) {
    return std::ranges::all_of(all, [&](const CountedStage& one) {
      const ClosedForm* form = row.counter.empty() ? nullptr : one.claimed.find(row.counter);
      return row.count(one.total) == 0 && (form == nullptr || holds(one, *form, problem));
    });
  });

  say("{}: {}{}\n\n", loaded.source, to_string(problem),
      options.pass == Pass::backward ? ", backward pass" : "");
  print("{}\n", table(rows, columns, problem));
  say("Counted by the emulator from the source of the kernels: global memory requested, before caches;\n"
      "operations and shared memory as written, where a compiler may join or drop some; each per thread,\n"
      "shuffles and syncwarps once per warp, barriers once per block.\n");
  if (!options.launches && all.size() > 1) say("x0.50: half of the count in the stage to its left.\n");
  say("= a closed form, which the count equals: {}.\n", symbols_text(all, problem));
  if (std::ranges::any_of(all, [&](const CountedStage& one) { return has_more(one, problem); }))
    say(">= a closed form of random numbers; these need more: see claim.cpp of the stage.\n");
  for (const CountedStage& one : all) {
    const Dtype dtype = dtype_for(*one.stage, problem.dtype);
    if (dtype != problem.dtype)
      say("{} took the input rounded to {}: it does not take {}.\n", label(*one.stage), to_string(dtype),
          to_string(problem.dtype));
  }
}

// --- JSON

Json counts_json(const Ledger& ledger) {
  Json counts = Json::object();
  for (const auto& [name, count] : ledger.counted()) counts[name] = count;
  return counts;
}

Json stage_json(const CountedStage& one, const Problem& problem) {
  Json json = {{"number", one.stage->number},
               {"name", one.stage->name},
               {"dtype", to_string(computing_dtype(*one.stage, dtype_for(*one.stage, problem.dtype)))},
               {"counts", counts_json(one.total)}};
  if (one.claim != nullptr) {
    const Symbols symbols = one.symbols(problem);
    json["tile"] = {{"Br", symbols.Br}, {"Bc", symbols.Bc}};
    json["closed_forms"] = Json::array();
    for (const ClosedForm& form : one.claimed.forms) {
      json["closed_forms"].push_back({{"counter", form.counter},
                                      {"text", form.text()},
                                      {"value", form.value(symbols)},
                                      {"least", form.least},
                                      {"random_too", form.random_too},
                                      {"measured", count_of(one.total, form.counter)}});
    }
  }
  json["launches"] = Json::array();
  for (const Ledger& launch : one.launches)
    json["launches"].push_back({{"kernel", launch.kernel}, {"counts", counts_json(launch)}});
  return json;
}

// --- on a GPU

/// One pass of a stage on the GPU. Throws Error where it left something unwritten, or wrote beside it.
template <class Run>
void run_pass(const Stage& stage, Run run) {
  Workspace workspace(free_memory(Backend::cuda));
  run.run(workspace);
  if (const std::string why = run.defect(); !why.empty())
    throw Error(fmt::format("stage {}: {}", label(stage), why));
}

/// Each stage once, and nothing else: a profiler shows these kernels alone.
int run_once(const std::vector<const Stage*>& chosen, const LoadedInputs& loaded, Pass pass) {
  std::vector<const Stage*> twins;
  twins.reserve(chosen.size());
  for (const Stage* stage : chosen) twins.push_back(&on_backend(*stage, Backend::cuda));
  for (const Stage* stage : twins) {
    const Inputs own = for_stage(*stage, loaded.inputs);
    if (pass == Pass::backward) {
      run_pass(*stage,
               BackwardRun(*stage, own, saved_forward(own), random_output_gradient(own.problem, 1)));
    } else {
      run_pass(*stage, ForwardRun(*stage, own));
    }
    print("{}: ran once on {}, {}; there is no ledger on a GPU\n", label(*stage), gpu_name(),
          to_string(own.problem));
  }
  return 0;
}

}  // namespace

LoadedInputs load_or_default(InputOptions options) {
  if (options.random.empty() && options.npz.empty() && options.q.empty() && options.k.empty() &&
      options.v.empty())
    options.random = default_sizes;
  return load_inputs(options);
}

int traced_row(const std::optional<int>& row, const Problem& problem) {
  if (row && (*row < 0 || *row >= problem.Nq))
    throw UsageError(fmt::format("--row {}: there are rows 0 to {}", *row, problem.Nq - 1));
  return row.value_or(static_cast<int>(problem.Nq) - 1);
}

int ledger(const LedgerOptions& options) {
  const std::vector<const Stage*> chosen = chosen_stages(options.stages, options.pass);
  const bool cuda = options.backend == "cuda";
  if (cuda && (options.json || options.trace || options.launches || options.banks || options.check)) {
    throw UsageError(
        "--json, --trace, --launches, --banks and --check are the emulator's, and there is no ledger on a "
        "GPU: leave them or --backend cuda out");
  }
  if (options.launches && (chosen.size() != 1 || options.json)) {
    throw UsageError(options.json ? "--launches is for the table: --json has the launches anyway"
                                  : "--launches shows the launches of one stage: name one, such as 10");
  }
  const LoadedInputs loaded = load_or_default(options.input);
  const Problem& problem = loaded.inputs.problem;
  for (const Stage* stage : chosen) require_supported(*stage, for_stage(*stage, loaded.inputs).problem);
  const int row = traced_row(options.row, problem);
  if (cuda) return run_once(chosen, loaded, options.pass);

  std::vector<CountedStage> all;
  {
    Progress progress;
    for (const Stage* stage : chosen) {
      progress.step(label(*stage) + ": counting on the emulator ...");
      simt::Trace trace;
      trace.row = row;
      all.push_back(count_stage(
          *stage, loaded.inputs, options.pass,
          {.banks = options.banks, .check = options.check, .trace = options.trace ? &trace : nullptr}));
      all.back().trace = std::move(trace);
    }
  }
  if (options.json) {
    Json json = {
        {"format", 1}, {"input", to_json(loaded)}, {"backend", "emulator"}, {"banks", options.banks}};
    if (options.pass == Pass::backward) json["pass"] = to_string(options.pass);
    json["stages"] = Json::array();
    std::vector<std::string> traces;
    for (const CountedStage& one : all) {
      json["stages"].push_back(stage_json(one, problem));
      if (one.trace.launches.empty()) continue;
      json["stages"].back()["trace"] = place_of(traces.size());
      traces.push_back(to_json(one.trace));
    }
    print("{}", json_text(json, traces));
  } else {
    print_table(all, options, loaded);
    if (options.check) print("Checked: no races, no reads of what nobody wrote, no endless loops.\n");
  }
  bool good = true;
  for (const CountedStage& one : all) {
    for (const ClosedForm& form : one.claimed.forms) {
      if (holds(one, form, problem)) continue;
      complain("ladder: stage {}: {} is {}, and its closed form {} gives {}\n", label(*one.stage),
               form.counter, count_of(one.total, form.counter), form.text(),
               form.value(one.symbols(problem)));
      good = false;
    }
  }
  return good ? 0 : 1;
}

std::span<const LedgerSummary::Field> LedgerSummary::fields() {
  static constexpr Field all[] = {
      {"hbm_bytes_read", "global read", &LedgerSummary::hbm_bytes_read, true},
      {"hbm_bytes_written", "global written", &LedgerSummary::hbm_bytes_written, true},
      {"shared_bytes", "shared bytes", &LedgerSummary::shared_bytes, true},
      {"barriers", "barriers", &LedgerSummary::barriers, false},
      {"operations", "non-matmul ops", &LedgerSummary::operations, false},
      {"matmul_flops", "matmul FLOPs", &LedgerSummary::matmul_flops, false},
      {"tiles", "tiles", &LedgerSummary::tiles, false},
      {"masked_tiles", "masked tiles", &LedgerSummary::masked_tiles, false},
      {"blocks", "blocks", &LedgerSummary::blocks, false},
      {"extra_bytes", "extra memory", &LedgerSummary::extra_bytes, true},
  };
  return all;
}

LedgerSummary count_launches(const std::function<void()>& run) {
  simt::Emulator emulator;
  const simt::UseEmulator use(emulator);
  run();
  const Ledger all = emulator.total();
  const simt::SharedTraffic shared = all.shared_total();
  const auto number = [](std::uint64_t count) { return static_cast<std::int64_t>(count); };
  return {.hbm_bytes_read = hbm_read(all),
          .hbm_bytes_written = hbm_written(all),
          .shared_bytes = number(shared.read_bytes + shared.written_bytes),
          .barriers = number(all.barriers + all.named_barriers),
          .operations = operations(all),
          .matmul_flops = number(all.flops_cuda_cores + all.flops_tensor_cores),
          .tiles = number(all.tiles),
          .masked_tiles = number(all.masked_tiles),
          .blocks = number(all.blocks),
          .extra_bytes = number(all.device_bytes)};
}

}  // namespace flashladder
