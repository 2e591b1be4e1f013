// The stages' kernels with one mistake each (tests/mutants/*.patch) go through what judges a stage: the
// checks of the values, the emulator's reports, the closed forms of the claim. Each must be rejected by at
// least one of the three, the stages as they are by none; and every claim must be the only one to reject
// some mutant, a kernel with the right results at the wrong price. Prints who rejected what, compares it
// with the table in docs/checks.md, and writes it to the file that FLASHLADDER_TABLE names. With
// FLASHLADDER_TURN=2/3 only the second of three parts of the mutants is tried, with FLASHLADDER_MUTANTS=49_
// only those whose names begin so.
#include "mutants/mutants.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/count.hpp"
#include "common/check/diagnose.hpp"
#include "common/check/inputs.hpp"
#include "common/check/run.hpp"
#include "common/error.hpp"

namespace {

using namespace flashladder;

Problem problem(std::int64_t batch, std::int64_t q_heads, std::int64_t kv_heads, std::int64_t Nq,
                std::int64_t Nk, std::int64_t d, bool causal) {
  Problem p;
  p.batch = batch;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.Nq = Nq;
  p.Nk = Nk;
  p.d = d;
  p.causal = causal;
  return p;
}

// --- the three judges

/// A verdict's reason without its numbers, which depend on the compiler: the output that is wrong, which
/// here means off, NaN or never written.
std::string in_short(const std::string& why) {
  for (const char* output : {"O", "L", "dQ", "dK", "dV", "dbias", "dsinks"}) {
    if (why.starts_with(output)) return std::string(output) + " wrong";
  }
  return why.empty() ? "not checked" : why;
}

/// What rejected a kernel, each in a word or two; empty where nothing did.
struct Caught {
  std::string checks, emulator, claim;
  bool hangs = false;  ///< Without Options::check it might not end.

  bool by_any() const { return !(checks.empty() && emulator.empty() && claim.empty()); }
  bool by_claim_only() const { return checks.empty() && emulator.empty() && !claim.empty(); }

  /// What the checks say. Inputs that would not show what is wrong reject nothing.
  void judged(const Verdict& verdict) {
    if (!verdict.passed && !verdict.blind) checks = in_short(verdict.why);
  }
  /// Calls `run`. The emulator may report an error in the runs of the other judges too: it is the one who
  /// found it. A stage that refuses what it must take is wrong too.
  template <class Run>
  void emulated(Run run) {
    try {
      run();
    } catch (const simt::KernelError& error) {
      hangs = hangs || error.kind == simt::ErrorKind::endless_loop;
      if (emulator.empty()) {
        emulator = "`" + std::string(simt::name_of(error.kind)) + "`";
        if (!error.buffer.empty()) emulator += " of " + error.buffer;
      }
    } catch (const Error&) {
      if (checks.empty()) checks = "refused";
    }
  }
};

/// Beyond plain attention, of what a stage takes: windows of both sides and of one, narrower than a tile
/// and wider, that leave tiles of keys in front and behind; rows that see no key, and keys that no row
/// sees; a softcap; a prefix within a tile, behind tiles, and of all keys; ALiBi, a bias, sinks,
/// dropout and a block map, under the causal mask and with a window; packed sequences of several tiles and
/// of less than one, some empty; all of them together, and some beside a prefix. With most_d, where it is
/// above 96, a few more.
std::vector<Problem> variant_problems(const Stage& stage, int most_d) {
  std::vector<Problem> all;
  for (const Window& window : {Window{3, -1}, Window{-1, 5}, Window{40, 40}, Window{0, 70}}) {
    all.push_back(problem(2, 2, 1, 150, 290, 32, false));
    all.back().window = window;
  }
  all.push_back(problem(1, 4, 2, 330, 170, 40, true));
  all.back().window = {20, -1};
  all.push_back(problem(2, 2, 1, 150, 290, 32, false));
  all.back().window = {std::int64_t{1} << 32, 5};  // more than an int holds
  all.push_back(problem(2, 2, 1, 40, 300, 64, false));
  all.back().window = {9, 9};
  all.back().scale = -0.2f;
  for (float softcap : {30.f, 1.f}) {
    all.push_back(problem(2, 4, 2, 65, 97, 40, softcap == 1));
    all.back().softcap = softcap;
    all.push_back(problem(1, 2, 1, 70, 290, 64, softcap != 1));
    all.back().softcap = softcap;
    all.back().scale = -0.2f;
  }
  for (std::int64_t prefix : {5, 100, 200}) {
    all.push_back(problem(2, 2, 1, 150, 140, 64, true));
    all.back().prefix = prefix;
  }
  for (const bool windowed : {false, true}) {
    Problem p = windowed ? problem(2, 4, 2, 130, 190, 64, false) : problem(2, 4, 2, 150, 90, 40, true);
    if (windowed) p.window = {20, 30};
    all.insert(all.end(), 6, p);
    all.end()[-6].block_map = random_block_map(p, 1, p.q_heads, 0.6, 3);
    all.end()[-5].bias_batch = all.end()[-5].bias_heads = 1;
    all.end()[-5].bias_rows = p.Nq;
    all.end()[-4].bias_batch = p.batch;
    all.end()[-4].bias_heads = p.q_heads;
    all.end()[-4].bias_rows = 1;
    all.end()[-3].alibi = true;
    all.end()[-2].sinks = true;
    all.end()[-1].dropout = {0.3f, (std::uint64_t{1} << 33) + 5};
  }
  for (const Packed how : {Packed::several, Packed::with_empty, Packed::partly_used}) {
    all.push_back(problem(1, 4, 2, 330, 400, 40, how == Packed::several));
    all.back().packing = packing_of(all.back(), how);
  }
  all.push_back(problem(1, 2, 2, 290, 390, 64, true));
  all.back().packing = packing_of(all.back(), Packed::with_empty);
  all.push_back(problem(1, 4, 2, 290, 390, 64, false));
  all.back().window = {20, 30};
  all.back().packing = packing_of(all.back(), Packed::several);
  all.push_back(all.back());  // all together
  all.back().softcap = 5;
  all.back().alibi = all.back().sinks = true;
  all.back().dropout = {0.3f, 5};
  all.push_back(all.back());  // and a bias and a block map, which have no packed sequences beside them
  all.back().packing = {};
  all.back().block_map = random_block_map(all.back(), 1, 1, 0.6, 5);
  all.back().bias_batch = 1;
  all.back().bias_heads = 4;
  all.back().bias_rows = 290;
  // Combinations that stage 81 has kernels for, and those with one variant more.
  Problem packed = problem(1, 2, 1, 290, 390, 64, false);
  packed.packing = packing_of(packed, Packed::several);
  packed.softcap = 5;
  all.insert(all.end(), 6, packed);
  all.end()[-5].causal = true;
  all.end()[-4].causal = all.end()[-4].sinks = true;
  all.end()[-3].dropout = {0.3f, 6};
  all.end()[-2].window = {20, 30};
  all.back() = problem(2, 2, 1, 290, 390, 64, true);
  all.back().block_map = random_block_map(all.back(), 1, 2, 0.6, 8);
  all.back().dropout = {0.3f, 9};
  all.back().sinks = true;
  all.push_back(problem(2, 2, 1, 390, 400, 40, false));
  all.back().block_map = random_block_map(all.back(), 2, 2, 0.4, 6);
  all.push_back(problem(1, 1, 1, 20, 4500, 32, false));  // more blocks than a warp has lanes
  all.back().block_map = random_block_map(all.back(), 1, 1, 0.2, 7);
  // A prefix with a bias; and of packed sequences, of which it is longer than one, without a softcap and
  // with one.
  all.push_back(problem(2, 4, 2, 150, 190, 64, true));
  all.back().bias_batch = all.back().bias_heads = 1;
  all.back().bias_rows = 150;
  packed.causal = true;
  all.insert(all.end(), 2, packed);
  all.end()[-2].softcap = 0;
  all.end()[-3].prefix = all.end()[-2].prefix = all.end()[-1].prefix = 100;
  // More sequences than stage 82 sorts in a block.
  std::vector<int> begins;
  for (int row = 0; row <= 390; row += 3) begins.push_back(row);
  all.push_back(problem(1, 1, 1, 390, 390, 32, true));
  all.back().packing = Packing::of(begins, begins);
  if (most_d > 96) {
    Problem large = problem(1, 2, 1, 150, 290, most_d, true);
    large.dropout = {0.3f, 4};
    all.insert(all.end(), 2, large);
    all.end()[-2].block_map = random_block_map(large, 1, 2, 0.6, 9);
    all.back().packing = packing_of(large, Packed::several);
    all.back().softcap = 5;
  }
  // A stage whose policy stands on that of the window has windows beside its own variant: alone they are
  // for the window's stage.
  const Features& takes = stage.supports.features;
  const bool stands_on_window =
      takes.alibi || takes.sinks || takes.dropout || takes.packing || takes.block_map;
  std::erase_if(all, [&](const Problem& p) {
    const bool window_alone = p.window.hides(p.causal) && !p.alibi && !p.has_bias() && !p.sinks &&
                              p.dropout.p == 0 && p.packing.sequences == 0 && !p.block_map.given();
    return !stage.supports.takes(p) || (stands_on_window && window_alone);
  });
  return all;
}

/// Whether a problem is one for this pass: keys that are not used have no gradient.
bool is_for(Pass pass, const Problem& p) {
  return pass == Pass::forward || !p.packing.partly_used;
}

/// What stages_test.cpp tries, in small: ragged and whole tiles, more queries than keys and the reverse,
/// grouped heads, rows that see no key, all layouts, a negative scale; each with all families of inputs.
class SmallCase {
 public:
  SmallCase(Inputs inputs, Layout layout, Dtype computing, std::uint64_t seed)
      : inputs(std::move(inputs)), layout(layout), computing_(computing), seed_(seed) {}

  Inputs inputs;
  Layout layout;

  /// What follows is computed when it is first asked for: many stages have one pass, and most mutants are
  /// rejected by one of the first cases.
  const Expected& expected() {
    if (!expected_) expected_ = expect_forward(inputs, computing_);
    return *expected_;
  }
  /// Of the forward pass, for the backward pass.
  const Result<float>& saved() {
    if (!saved_) saved_ = saved_forward(inputs);
    return *saved_;
  }
  const std::vector<float>& dO() {
    if (dO_.empty()) dO_ = random_output_gradient(inputs.problem, seed_);
    return dO_;
  }
  const ExpectedGradients& gradients() {
    if (!gradients_) gradients_ = expect_backward(inputs, saved(), dO(), computing_);
    return *gradients_;
  }

 private:
  Dtype computing_;
  std::uint64_t seed_;
  std::optional<Expected> expected_;
  std::optional<Result<float>> saved_;
  std::vector<float> dO_;
  std::optional<ExpectedGradients> gradients_;
};

using SmallCases = std::vector<std::shared_ptr<SmallCase>>;

/// Whether its blocks come in clusters, at this head dimension; at others it is the stage before.
bool has_clusters(const Stage& stage) {
  return stage.number == 65;
}
constexpr int cluster_d = 136;

/// The cases for `stage`, in the dtype that it computes in, each made once for all stages that have it.
SmallCases cases_for(const Stage& stage, int most_d = 96) {
  // Tiny problems in large numbers: on a handful of elements the yardstick is a matter of luck.
  std::vector<Problem> problems = {
      problem(4, 2, 2, 17, 17, 32, false),   problem(2, 4, 2, 65, 97, 32, true),
      problem(1, 3, 1, 113, 139, 32, false), problem(1, 2, 2, 128, 128, 32, true),
      problem(2, 2, 1, 330, 31, 32, true),   problem(4, 2, 2, 1, 139, 32, false),
      problem(1, 2, 1, 40, 290, 64, true),   problem(2, 2, 1, 40, 150, 96, true),
      problem(2, 4, 2, 65, 97, 40, true),    problem(1, 2, 1, 70, 290, 32, true),
  };
  problems.back().scale = -0.2f;
  if (has_clusters(stage)) {
    problems = {problem(2, 2, 1, 150, 290, cluster_d, true), problem(1, 3, 1, 330, 140, cluster_d, false),
                problem(1, 2, 2, 140, 130, cluster_d, true), problem(2, 4, 2, 165, 197, cluster_d, true)};
    problems.back().scale = -0.2f;
  }
  std::ranges::copy(variant_problems(stage, most_d), std::back_inserter(problems));
  SmallCases cases;
  static std::map<std::tuple<std::string, float, std::string_view, std::uint64_t, Layout>,
                  std::shared_ptr<SmallCase>>
      made;
  const auto add = [&](const Family& family, Problem p, std::uint64_t seed) {
    p.dtype = stage.supports.dtypes.front();
    const Layout layout = all_layouts[cases.size() % std::size(all_layouts)];
    std::shared_ptr<SmallCase>& one = made[{to_string(p), p.scale, family.name, seed, layout}];
    if (one == nullptr)
      one = std::make_shared<SmallCase>(make_inputs(family, p, seed), layout,
                                        computing_dtype(stage, p.dtype), seed);
    cases.push_back(one);
  };
  for (const Problem& p : problems) {
    if (!stage.supports.head_dim(p.d)) continue;
    for (const Family& family : input_families()) add(family, p, cases.size());
  }
  // One of stages_test.cpp's own, where some key's score is so far above the others of its row that a
  // maximum that misses it makes the exponentials overflow: it takes that much to show.
  for (const Family& family : input_families()) {
    if (family.name == "large_scores") add(family, problem(4, 2, 2, 65, 65, 32, true), 48);
  }
  // More heads than a section has, of two batch entries, with and without the mask.
  if (claim_of(stage)->backward.find("most_tiles_of_multiprocessor") != nullptr) {
    for (const bool causal : {false, true})
      add(input_families().front(), problem(2, 16, 8, 300, 31, 32, causal), cases.size());
  }
  // The last key of row 63 is the first of a tile of 64.
  for (const Family& family : input_families())
    add(family, problem(1, 2, 1, 128, 129, 32, true), cases.size());
  return cases;
}

/// One OS thread, so that a kernel with a race in it does the same every time.
simt::Options one_thread() {
  simt::Options options;
  options.os_threads = 1;
  return options;
}

void judge_by_checks(const Stage& stage, int most_d, Caught& caught) {
  simt::Emulator emulator(one_thread());
  const simt::UseEmulator use(emulator);
  for (const auto& shared : cases_for(stage, most_d)) {
    SmallCase& one = *shared;
    emulator.reset();
    caught.emulated([&] {
      if (stage.forward == nullptr) return;
      const Verdict verdict = run_and_check(stage, one.inputs, one.layout, one.expected());
      caught.judged(verdict);
    });
    if (!caught.checks.empty()) return;  // one is enough
    caught.emulated([&] {
      if (stage.backward == nullptr || !is_for(Pass::backward, one.inputs.problem)) return;
      const Verdict verdict =
          run_and_check_backward(stage, one.inputs, one.saved(), one.dO(), one.layout, one.gradients());
      caught.judged(verdict);
    });
    if (!caught.checks.empty()) return;
  }
}

/// What nobody has rejected, and what shows at large head dimensions only, goes through all cases of
/// stages_test.cpp, as the stages do: some mistakes take many heads, long rows or a layout to show.
void judge_by_all_checks(const Mutant& mutant, Caught& caught) {
  const Stage& stage = *mutant.stage;
  simt::Emulator emulator(one_thread());
  const simt::UseEmulator use(emulator);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (!stage.has(pass)) continue;
    std::uint64_t seed = 0;
    for (const Case& one : make_cases(stage, pass)) {
      const bool compiled =
          one.problem.d <= mutant.most_d && one.problem.dtype == stage.supports.dtypes.front();
      if (!compiled) continue;
      const Inputs inputs = one.inputs(seed++);
      emulator.reset();
      caught.emulated([&] {
        const Dtype dtype = computing_dtype(stage, inputs.problem.dtype);
        Verdict verdict;
        if (pass == Pass::backward) {
          const Result<float> saved = saved_forward(inputs);
          const std::vector<float> dO = random_output_gradient(inputs.problem, 5);
          verdict = run_and_check_backward(stage, inputs, saved, dO, one.layout,
                                           expect_backward(inputs, saved, dO, dtype));
        } else {
          verdict = run_and_check(stage, inputs, one.layout, expect_forward(inputs, dtype));
        }
        caught.judged(verdict);
      });
      if (!caught.checks.empty() || !caught.emulator.empty()) return;
    }
  }
}

/// The emulator looking for all that it can find, whichever threads come first. Two tiles of keys and a
/// part of one, so that what one leaves behind meets the next; with d = 64 the stages that exchange O
/// through shared memory do so twice per tile, and in stage 29 the tiles of K take turns in one buffer; a
/// tile of rows that sees no key; and a negative scale, whose sign some stages move into Q.
void judge_by_emulator(const Stage& stage, int most_d) {
  const std::int64_t keys = 2 * claim_of(stage)->tile.Bc + 6;
  std::vector<Problem> problems = {problem(1, 2, 1, 65, keys, 32, true),
                                   problem(2, 1, 1, 33, keys, 64, false),
                                   problem(1, 1, 1, 140, 8, 32, true), problem(1, 1, 1, 33, 40, 64, true)};
  problems.back().scale = -0.2f;
  std::ranges::copy(variant_problems(stage, most_d), std::back_inserter(problems));
  // Where two warps share their keys.
  if (stage.number == 38 || stage.number == 39 || stage.number == 71) most_d = 256;
  if (most_d > 96) problems.push_back(problem(1, 1, 1, 65, 70, most_d, true));
  // Where a block has three tiles of rows, one more than there are buffers.
  if (stage.gpu == Gpu::hopper && stage.backward != nullptr) {
    problems.push_back(problem(1, 3, 1, 33, 40, 64, false));
    if (most_d > 96) problems.push_back(problem(1, 2, 1, 130, 40, most_d, false));
  }
  // Where some blocks have three row tiles, one more than there are buffers of Q: of many tiles of keys,
  // and of one, which no other holds back.
  if (blocks_stay(stage)) {
    for (const std::int64_t Nk : {keys, std::int64_t{40}})
      problems.push_back(problem(1, 36, 36, 33, Nk, 32, true));
  }
  if (has_clusters(stage)) {
    problems = {problem(1, 2, 1, 300, keys, cluster_d, true),
                problem(1, 20, 20, 150, keys, cluster_d, true),
                problem(1, 3, 1, 600, 140, cluster_d, true)};
    problems.back().scale = -0.2f;
  }
  for (const Problem& p : problems) {
    const Inputs inputs = random_inputs(p, 1);
    for (simt::Schedule schedule :
         {simt::Schedule::forward, simt::Schedule::reverse, simt::Schedule::random}) {
      simt::Options options = one_thread();
      options.check = true;
      options.schedule = schedule;
      options.seed = 7;
      options.access_budget = 100'000;
      for (const CountedPass& pass : passes_of(stage)) {
        if (is_for(pass.pass, p)) pass.count(stage, inputs, options, nullptr);
      }
    }
  }
}

/// Address space for O, used only where a row of it is.
struct FarApart {
  static constexpr std::int64_t rows = 33;
  static constexpr std::int64_t row =
      (std::int64_t{1} << 31) / (rows - 1);  ///< The last one's offset is no int.
  static constexpr std::size_t bytes = ((std::size_t{1} << 31) + 32) * sizeof(float);
  FarApart()
      : data(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  0)) {}
  ~FarApart() {
    if (data != MAP_FAILED) munmap(data, bytes);
  }
  FarApart(const FarApart&) = delete;
  FarApart& operator=(const FarApart&) = delete;
  void* data;
};

/// The emulator on rows of O that lie far apart: so an offset of 32 bits shows on a small problem.
void judge_far_apart(const Stage& stage, const FarApart& memory) {
  if (stage.forward == nullptr) return;
  const Inputs inputs = for_stage(stage, random_inputs(problem(1, 1, 1, FarApart::rows, 5, 32, false), 1));
  const Problem& p = inputs.problem;
  Buffer Q(1, 1, p.Nq, p.d, Layout::contiguous, p.dtype), K(1, 1, p.Nk, p.d, Layout::contiguous, p.dtype),
      V(1, 1, p.Nk, p.d, Layout::contiguous, p.dtype);
  Q.write(inputs.Q);
  K.write(inputs.K);
  V.write(inputs.V);
  simt::Emulator emulator(one_thread());
  const simt::UseEmulator use(emulator);
  std::vector<float> L(p.Nq);
  Workspace workspace;
  run_forward(stage,
              {.problem = p,
               .Q = Q.tensor(),
               .K = K.tensor(),
               .V = V.tensor(),
               .O = {memory.data, p.dtype, {p.Nq * FarApart::row, p.Nq * FarApart::row, FarApart::row}},
               .L = named_tensor("L").contiguous(p, L.data()),
               .workspace = workspace});
}

/// The closed forms, from stage 21 on, but for 32, that shared memory is accessed without bank conflicts,
/// and that O is written in whole sectors where that is claimed.
void judge_by_claim(const Stage& stage, int most_d, Caught& caught) {
  const Claim* claim = claim_of(stage);
  REQUIRE(claim != nullptr);
  for (const CountedPass& pass : passes_of(stage)) REQUIRE(pass.forms.size() > 10);
  for (bool causal : {false, true}) {
    // Under the mask the first tile of rows does not see all tiles of keys.
    const std::int64_t rows = std::max({std::int64_t{128}, 2 * claim->tile.Br, 2 * claim->tile.Bc});
    Problem negative = problem(1, 1, 1, 1, 139, 64, causal);
    negative.scale = -0.2f;
    std::vector<Problem> problems = {problem(1, 2, 2, rows, rows, 32, causal),
                                     problem(2, 4, 2, 65, 97, 32, causal),
                                     problem(1, 3, 1, 170, 31, 32, causal), negative};
    if (most_d > 96) problems.push_back(problem(1, 1, 1, 65, 70, most_d, causal));
    if (most_d > 96 && stage.gpu == Gpu::hopper && stage.backward != nullptr)
      problems.push_back(problem(1, 2, 1, 130, 40, most_d, causal));
    // So many row tiles, and keys, that the order of blocks counts.
    if (claim->forward.find("most_tiles_of_multiprocessor") != nullptr || blocks_stay(stage)) {
      problems.push_back(problem(1, 14, 7, 600, 600, 64, causal));
      if (causal) problems.push_back(problem(1, 9, 9, 600, 600, 64, causal));  // three sections, not two
    }
    // The same backward: sections of one head, and of several.
    if (claim->backward.find("most_tiles_of_multiprocessor") != nullptr) {
      problems.push_back(problem(1, 14, 7, 600, 600, 64, causal));
      problems.push_back(problem(2, 16, 8, 600, 300, 64, causal));
    }
    if (blocks_stay(stage)) problems.push_back(problem(1, 2, 1, 200, 600, 96, causal));  // another tile
    // Backward more tiles of rows for a tile of keys than blocks stay for.
    if (blocks_stay(stage) && stage.backward != nullptr) {
      for (const std::int64_t heads : {7, 12})  // 21 and 36 of them
        problems.push_back(problem(1, heads, 1, 300, 31, 32, causal));
      // Of blocks that take whole heads two for each, with whole tiles of keys; and one, with more rows
      // than L2 holds.
      if (claim->backward.find("blocks")->text().find("in order") != std::string::npos) {
        problems.push_back(problem(2, 16, 16, 130, 128, 64, causal));
        problems.push_back(problem(2, 8, 8, 700, 60, 64, causal));
      }
    }
    if (has_clusters(stage)) {
      problems = {problem(1, 2, 1, 300, 290, cluster_d, causal),
                  problem(1, 14, 7, 600, 300, cluster_d, causal)};
    }
    if (!causal) std::ranges::copy(variant_problems(stage, most_d), std::back_inserter(problems));
    for (const Problem& p : problems) {
      for (const CountedPass& pass : passes_of(stage)) {
        if (!is_for(pass.pass, p)) continue;
        const Symbols symbols = claim->symbols(p, pass.pass);
        const simt::Ledger ledger = pass.count(stage, random_inputs(p, 1), one_thread(), nullptr);
        for (const ClosedForm& form : pass.forms) {
          if (!form.holds_for_random(count_of(ledger, form.counter), symbols) && caught.claim.empty())
            caught.claim = "`" + std::string(form.counter) + "`";
        }
      }
    }
  }
  if (std::ranges::any_of(claim->forward.forms, &ClosedForm::random_too)) {
    const Symbols tile = claim->symbols(problem(1, 1, 1, 1, 1, 32, false));
    Problem p = problem(1, 1, 1, tile.Br, 3 * tile.Bc, 32, false);  // whole tiles
    const Features& features = stage.supports.features;
    p.alibi = features.alibi;  // of 2^-8 a key: the scores stay steady
    p.sinks = features.sinks;
    if (features.dropout) p.dropout.p = 0.3f;
    const Symbols symbols = claim->symbols(p);
    const simt::Ledger ledger = count_forward(stage, steady_inputs(p, tile.Bc), one_thread(), nullptr);
    for (const ClosedForm& form : claim->forward.forms) {
      if (count_of(ledger, form.counter) != form.value(symbols) && caught.claim.empty())
        caught.claim = "`" + std::string(form.counter) + "`";
    }
  }
  if (stage.number < 21 || stage.number == 32) return;  // 32: as 20, without a swizzle
  for (std::int64_t d : {32, 64, 96}) {
    if (!stage.supports.head_dim(d)) continue;
    simt::Options options = one_thread();
    options.banks = true;
    for (const CountedPass& pass : passes_of(stage)) {
      const simt::Ledger ledger =
          pass.count(stage, random_inputs(problem(1, 1, 1, 64, 64, d, false), 1), options, nullptr);
      for (const auto& [name, traffic] : ledger.shared) {
        if (traffic.wavefronts != traffic.ideal_wavefronts && caught.claim.empty())
          caught.claim = "`shared." + name + ".wavefronts`";
      }
      const auto O = ledger.global.find("O");
      const bool whole = O == ledger.global.end() || O->second.sectors == O->second.ideal_sectors;
      if (pass.name == "forward" && claim->whole_sectors_of_O && !whole && caught.claim.empty())
        caught.claim = "`global.O.sectors`";
    }
  }
}

/// What the three say of `stage`.
Caught judge(const Stage& stage, int most_d, const FarApart& far_apart) {
  Caught caught;
  caught.emulated([&] { judge_by_emulator(stage, most_d); });
  if (caught.hangs) return caught;
  caught.emulated([&] { judge_far_apart(stage, far_apart); });
  judge_by_checks(stage, most_d, caught);
  caught.emulated([&] { judge_by_claim(stage, most_d, caught); });
  return caught;
}

/// What is said of a mutant.
Caught judge_mutant(const Mutant& mutant, const FarApart& far_apart) {
  Caught caught = judge(*mutant.stage, mutant.most_d, far_apart);
  // But for variants the small cases have no head dimension above 96.
  const bool by_checks_or_emulator = !caught.checks.empty() || !caught.emulator.empty();
  if (!by_checks_or_emulator && (mutant.most_d > 96 || !caught.by_any()))
    judge_by_all_checks(mutant, caught);
  return caught;
}

// --- the patches and the table

const std::string source = FLASHLADDER_SOURCE_DIR;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  REQUIRE(file);
  return text.str();
}

struct Patch {
  std::string sentence;  ///< What the mistake is.
  int changed = 0;       ///< Lines removed or added, whichever are more.
};

Patch read_patch(std::string_view name) {
  std::istringstream lines(text_of(source + "/tests/mutants/" + std::string(name) + ".patch"));
  Patch patch;
  int removed = 0, added = 0;
  bool in_sentence = true;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("--- ")) {
      in_sentence = false;
    } else if (in_sentence) {
      patch.sentence += (patch.sentence.empty() ? "" : " ") + line;
    } else if (!line.starts_with("+++ ")) {
      removed += line.starts_with("-");
      added += line.starts_with("+");
    }
  }
  patch.changed = std::max(removed, added);
  return patch;
}

TEST_CASE("a mutant is a patch of at most five lines, with a sentence that says what the mistake is",
          "[mutant]") {
  std::size_t files = 0;
  std::map<int, int> of_stage;
  for (const auto& entry : std::filesystem::directory_iterator(source + "/tests/mutants")) {
    if (entry.path().extension() != ".patch") continue;
    const std::string name = entry.path().stem();
    INFO(name);
    const Patch patch = read_patch(name);
    CHECK(patch.changed >= 1);
    CHECK(patch.changed <= 5);
    CHECK(patch.sentence.size() > 10);
    if (name.starts_with("65_")) CHECK(patch.sentence.ends_with("Seen at d = 136 only."));
    CHECK(patch.sentence.ends_with("."));
    CHECK(patch.sentence.find('|') == patch.sentence.npos);  // a table holds it
    ++of_stage[std::stoi(name)];
    ++files;
  }
  REQUIRE(files >= 90);
  for (const Stage* stage : stages()) {
    if (claim_of(*stage) == nullptr) continue;
    INFO(label(*stage));
    CHECK(of_stage[stage->number] >= 3);
  }
  for (const Mutant& mutant : mutants())
    CHECK(std::to_string(mutant.stage->number) == mutant.name.substr(0, 2));
  CHECK(mutants().size() <= files);
  if (turn_of_mutants().empty()) CHECK(mutants().size() == files);
}

TEST_CASE("a failure's report names the intermediate that went wrong first", "[mutant]") {
  CHECK((mutants().size() > 0 || !turn_of_mutants().empty()));  // of a part of them there may be none here
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 300;  // more than one tile of keys
  p.d = 32;
  const Inputs inputs = random_inputs(p, 1);
  const std::pair<std::string_view, std::string> cases[] = {
      {"15_scale_forgotten", "first to diverge: S of head 0, row 0 (row tile 0), key tile 0, key "},
      {"12_l_not_rescaled", "first to diverge: l of head "},
      {"12_o_not_rescaled", "first to diverge: O~ of head "},
      {"11_beta_forgotten", "first to diverge: O of head "},
      {"13_o_of_three_warps", "first to diverge: O~ of head 0, row 0 (row tile 0), key tile 0, column 0: "},
      {"20_b_halves_swapped", "first to diverge: S of head 0, row 0 (row tile 0), key tile 0, key "},
      {"21_v_not_transposed", "first to diverge: O~ of head 0, row 0 (row tile 0), key tile 0, column "},
  };
  for (const auto& [name, report] : cases) {
    const auto found = std::ranges::find(mutants(), name, &Mutant::name);
    if (found == mutants().end() && !turn_of_mutants().empty()) continue;
    REQUIRE(found != mutants().end());
    const std::string got = first_divergence(*found->stage, for_stage(*found->stage, inputs));
    INFO(name << ": " << got);
    CHECK(got.starts_with(report));
  }
}

TEST_CASE("every eighth mutant is rejected", "[mutant]") {
  const FarApart far_apart;
  REQUIRE(far_apart.data != MAP_FAILED);
  // Of those that have their turn one: the long test tries all of them.
  const std::size_t step = turn_of_mutants().empty() ? 8 : std::max<std::size_t>(mutants().size(), 1);
  for (std::size_t i = 0; i < mutants().size(); i += step) {
    INFO(mutants()[i].name);
    CHECK(judge_mutant(mutants()[i], far_apart).by_any());
  }
}

/// The rows of docs/checks.md's table below this header, by the name of the mutant.
std::map<std::string, std::string> published_rows(const std::string& header) {
  const std::string page = text_of(source + "/docs/checks.md"), begin = "<!-- mutants:begin -->\n" + header;
  const std::size_t from = page.find(begin), to = page.find("<!-- mutants:end -->");
  REQUIRE((from != page.npos && to != page.npos && from < to));
  std::map<std::string, std::string> rows;
  for (std::size_t at = from + begin.size(), end; at < to; at = end + 1) {
    end = page.find('\n', at);
    const std::string row = page.substr(at, end - at + 1);
    rows[row.substr(0, row.find('|', 1))] = row;
  }
  return rows;
}

TEST_CASE("every mutant is rejected, and no stage is", "[every-mutant]") {
  const char* begin = std::getenv("FLASHLADDER_MUTANTS");
  const char* turn = std::getenv("FLASHLADDER_TURN");
  INFO("configure again: ./ladder test does it, cmake takes -DFLASHLADDER_TURN");
  REQUIRE(turn_of_mutants() == (turn == nullptr ? "" : turn));  // of what was compiled
  const bool names_some =
      begin != nullptr && std::string_view(begin).size() > std::string_view("49_").size();
  const auto is_asked_for = [&](std::string_view name) {
    return begin == nullptr || name.starts_with(begin);
  };
  const FarApart far_apart;
  REQUIRE(far_apart.data != MAP_FAILED);

  // A line of the table for each mutant.
  const std::string header =
      "| mutant | the mistake | checks | emulator | claim |\n|---|---|---|---|---|\n";
  const std::map<std::string, std::string> published = published_rows(header);
  CHECK((!turn_of_mutants().empty() || published.size() == mutants().size()));
  std::string table = header;
  std::map<int, int> by_claim_only;
  for (const Mutant& mutant : mutants()) {
    if (!is_asked_for(mutant.name)) continue;
    const Caught caught = judge_mutant(mutant, far_apart);
    INFO(mutant.name);
    CHECK(caught.by_any());
    by_claim_only[mutant.stage->number] += caught.by_claim_only();
    const std::string name = "| `" + std::string(mutant.name) + "` ";
    std::string row = name + "| " + read_patch(mutant.name).sentence;
    for (const std::string& said : {caught.checks, caught.emulator, caught.claim})
      row += said.empty() ? " |" : " | " + said;
    row += " |\n";
    table += row;
    INFO(
        "docs/checks.md is stale: put between its markers 'mutants' what\n"
        "FLASHLADDER_TABLE=table.md build/release/tests/flashladder_mutant_tests writes into table.md");
    CHECK((published.contains(name) && row == published.at(name)));
  }

  // Their stages, without a mistake.
  REQUIRE(by_claim_only.size() >= 1);
  for (const auto& [number, count] : by_claim_only) {
    const Stage& stage = find_stage(number);
    INFO(label(stage));
    REQUIRE(cases_for(stage).size() > 30);
    const Caught caught = judge(stage, 96, far_apart);
    CHECK(caught.checks == "");
    CHECK(caught.emulator == "");
    CHECK(caught.claim == "");
    INFO("a mutant that only the claim rejects, with right results at the wrong price");
    CHECK((count >= 1 || names_some));
  }
  std::printf("What rejects which mutant, and why:\n%s", table.c_str());
  if (const char* path = std::getenv("FLASHLADDER_TABLE")) std::ofstream(path) << table;
}

}  // namespace
