// Every stage of the registry, forward and backward, on the inputs and shapes that tell wrong from right.
// Each stage is a section of its own, named as its folder: ctest runs them one by one (-c 02_tiled_cpu).
// The stages of kernels run on the emulator, and where there is a GPU once more on it (-c
// 13_fa2_sequence_parallel_cuda).
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "cases.hpp"
#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/diagnose.hpp"
#include "common/check/inputs.hpp"
#include "common/check/turn.hpp"
#include "common/claims/closed_form.hpp"
#include "common/io/npz.hpp"
#include "common/simt/block.hpp"
#include "wrong_table.hpp"

namespace {

using namespace flashladder;

/// The stages on all backends that can run here.
const std::vector<const Stage*>& tested_stages() {
  static const std::vector<const Stage*> all = [] {
    std::vector<const Stage*> found(stages().begin(), stages().end());
    const std::vector<const Stage*> on_gpu = gpu_stages();
    found.insert(found.end(), on_gpu.begin(), on_gpu.end());
    return found;
  }();
  return all;
}

std::string folder(const Stage& stage) {
  return folder_name(stage) + (stage.backend == Backend::cuda ? "_cuda" : "");
}

/// Whether a stage has the pass that is tested; where it has not, that is all there is to check.
bool takes_part(const Stage& stage, bool has_it) {
  if (!has_it) SUCCEED(label(stage) + " has no such pass");
  return has_it;
}

struct Shape {
  std::int64_t Nq, Nk;
};

/// What a stage made of its inputs, and what it was held against.
struct Checked {
  Expected expected;
  Result<float> result;
};

/// `stage` on `inputs`, against what is expected of it.
/// @param blind  receives whether nothing is wrong that these inputs show, and they do not show all; null:
///               they must
Checked check_expected(const Stage& stage, const Inputs& inputs, Layout layout, Expected expected,
                       bool* blind = nullptr) {
  Checked checked{std::move(expected), {}};
  const Verdict verdict = run_and_check(stage, inputs, layout, checked.expected, &checked.result);
  if (blind != nullptr && (*blind = verdict.blind)) return checked;
  CHECK(verdict.why == "");
  if (!verdict.passed) FAIL(first_divergence(stage, inputs));
  return checked;
}

/// The same, against the oracle.
Checked check_stage(const Stage& stage, const Inputs& inputs, Layout layout, bool* blind = nullptr) {
  const Dtype dtype = computing_dtype(stage, inputs.problem.dtype);
  return check_expected(stage, inputs, layout, expect_forward(inputs, dtype), blind);
}

/// The same, and against the stage before it. Where both are within their bounds of the oracle, they are
/// within the sum of the bounds of each other: this finds no mistake that check_stage of both stages does
/// not find. It says how far the two are apart, and takes the time of both: so not every case has it.
void check_beside_stage_before(const Stage& stage, const Inputs& inputs, Layout layout) {
  const Checked own = check_stage(stage, inputs, layout);
  if (stage.before == stage.number || !find_stage(stage.before).supports.takes(inputs.problem)) return;
  const Stage& stage_before = on_backend(find_stage(stage.before), stage.backend);
  INFO("the stage before");
  const Dtype dtype = computing_dtype(stage_before, inputs.problem.dtype);
  const Checked before =
      check_expected(stage_before, inputs, layout,
                     dtype == own.expected.dtype ? own.expected : expect_forward(inputs, dtype));
  const Verdict against = check_against(own.result, own.expected, before.result, before.expected);
  CHECK(against.why == "");
  if (!against.passed) FAIL(first_divergence(stage, inputs));
}

/// As Checked, of the backward pass.
struct CheckedBackward {
  ExpectedGradients expected;
  Gradients<float> result;
};

/// The backward pass of `stage`, against what is expected of it.
/// @param forward  what it is given of the forward pass
/// @param blind    as of check_expected
CheckedBackward check_expected_gradients(const Stage& stage, const Inputs& inputs,
                                         const Result<float>& forward, const std::vector<float>& dO,
                                         Layout layout, ExpectedGradients expected, bool* blind = nullptr) {
  CheckedBackward checked{std::move(expected), {}};
  const Verdict verdict =
      run_and_check_backward(stage, inputs, forward, dO, layout, checked.expected, &checked.result);
  if (blind != nullptr && (*blind = verdict.blind)) return checked;
  CHECK(verdict.why == "");
  REQUIRE(verdict.passed);
  // Rows that see no key have no gradient, exactly.
  const Problem& p = inputs.problem;
  for (std::int64_t row = 0; row < p.batch * p.q_heads * p.Nq; ++row) {
    if (p.keys(row % p.Nq).size() > 0) continue;
    const float* dQ = checked.result.dQ.data() + row * p.d;
    REQUIRE(std::all_of(dQ, dQ + p.d, [](float x) { return x == 0; }));
  }
  return checked;
}

/// The same, against the oracle.
CheckedBackward check_gradients_of(const Stage& stage, const Inputs& inputs, const std::vector<float>& dO,
                                   Layout layout, bool* blind = nullptr) {
  const Result<float> forward = saved_forward(inputs);
  const Dtype dtype = computing_dtype(stage, inputs.problem.dtype);
  return check_expected_gradients(stage, inputs, forward, dO, layout,
                                  expect_backward(inputs, forward, dO, dtype), blind);
}

/// The same with random numbers as dO.
CheckedBackward check_backward_of(const Stage& stage, const Inputs& inputs, Layout layout,
                                  bool* blind = nullptr) {
  return check_gradients_of(stage, inputs, random_output_gradient(inputs.problem, 5), layout, blind);
}

/// As check_beside_stage_before, of the backward pass.
void check_backward_beside_stage_before(const Stage& stage, const Inputs& inputs, Layout layout) {
  const Result<float> forward = saved_forward(inputs);
  const std::vector<float> dO = random_output_gradient(inputs.problem, 5);
  const Dtype dtype = computing_dtype(stage, inputs.problem.dtype);
  const CheckedBackward own = check_expected_gradients(stage, inputs, forward, dO, layout,
                                                       expect_backward(inputs, forward, dO, dtype));
  const Stage* stage_before = backward_before(stage);
  if (stage_before == nullptr || !stage_before->supports.takes(inputs.problem)) return;
  INFO("the stage before");
  const Dtype dtype_before = computing_dtype(*stage_before, inputs.problem.dtype);
  const CheckedBackward before = check_expected_gradients(
      *stage_before, inputs, forward, dO, layout,
      dtype_before == dtype ? own.expected : expect_backward(inputs, forward, dO, dtype_before));
  const Verdict against = check_backward_against(own.result, own.expected, before.result, before.expected);
  CHECK(against.why == "");
  REQUIRE(against.passed);
}

#ifndef FLASHLADDER_SANITIZED  // where the cases are fewer
TEST_CASE("every two traits come together in the cases", "[check]") {
  // The table of docs/checks.md: of each two traits the fewest cases that two of their levels have.
  std::array<std::array<int, traits>, traits> fewest;
  for (auto& row : fewest) row.fill(1 << 30);
  for (const Stage* stage : tested_stages()) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (!stage->has(pass)) continue;
      std::set<std::pair<std::int64_t, Dtype>> kernels;
      for (const Case& one : make_cases(*stage, Pass::forward))
        kernels.emplace(one.problem.d, one.problem.dtype);
      CHECK(kernels.size() >= stage->supports.head_dims.size() * stage->supports.dtypes.size());
      const auto coverage = coverage_of(*stage, pass);
      for (int a = 0; a < traits; ++a) {
        for (int b = a + 1; b < traits; ++b) {
          INFO(label(*stage) << (pass == Pass::backward ? ", backward: " : ": ") << text_of(Trait(a)).name
                             << " and " << text_of(Trait(b)).name);
          CHECK(coverage[a][b].missing == 0);
          fewest[a][b] = std::min(fewest[a][b], coverage[a][b].fewest);
        }
      }
    }
  }
  std::string table = "| |", rule = "\n|---|";
  for (int b = 1; b < traits; ++b) {
    table += " " + text_of(Trait(b)).name + " |";
    rule += "--:|";
  }
  table += rule + "\n";
  for (int a = 0; a + 1 < traits; ++a) {
    table += "| " + text_of(Trait(a)).name + " |";
    for (int b = 1; b < traits; ++b) table += b <= a ? " |" : " " + std::to_string(fewest[a][b]) + " |";
    table += "\n";
  }
  write_table("The fewest cases in which two levels of two traits come together", table);
  std::ifstream page(FLASHLADDER_SOURCE_DIR "/docs/checks.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  CHECK(text.find(table) != text.npos);
}
#endif

/// Whether all cases of a stage are quick tests: on a GPU, where a case takes no time, and under
/// sanitizers, which leave few of them. Stages that take several variants together are no such stages: most
/// compile a kernel for each combination, in seconds.
bool all_are_quick([[maybe_unused]] const Stage& stage) {
#ifdef FLASHLADDER_SANITIZED
  return true;
#else
  return stage.backend == Backend::cuda &&
         !(stage.supports.features.softcap && stage.supports.features.window);
#endif
}

/// Whether case i of a stage is in its quick tests: all, or a fifth, with shapes, masks and families in
/// turn. The others follow in the long tests.
bool is_quick(const Stage& stage, std::size_t i) {
  return all_are_quick(stage) || (i + i / input_families().size()) % 5 == 0;
}

/// Whether thing i of the long tests of a stage has its turn. At one time it is another part of each stage.
bool has_its_turn(const Stage& stage, std::size_t i) {
  static const Turn turn = turn_of_environment();
  return turn.takes(i + static_cast<std::size_t>(stage.number));
}

/// `check`s the cases of each stage that are in its quick tests, or those of the others that have their
/// turn. There are some, but for the others where all are quick.
template <class Check>
void check_cases(Pass pass, bool quick, Check check) {
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(pass))) continue;
      const std::vector<Case>& cases = make_cases(*stage, pass);
      std::size_t checked = 0;
      for (std::size_t i = 0; i < cases.size(); ++i) {
        if (is_quick(*stage, i) != quick || (!quick && !has_its_turn(*stage, i))) continue;
        INFO(cases[i].text());
        // Some numbers judge nothing, by bad luck: the plain computation errs as much as a mistake changes.
        // Then others must.
        bool blind = true;
        for (std::uint64_t seed = i; blind && seed < i + 4000; seed += 1000)
          check(*stage, cases[i].inputs(seed), cases[i].layout, &blind);
        if (blind) check(*stage, cases[i].inputs(i), cases[i].layout, nullptr);
        ++checked;
      }
      CHECK((checked > 0 || (!quick && all_are_quick(*stage))));
    }
  }
}

TEST_CASE("forward: all families, ragged shapes, masks, heads, layouts", "[stage]") {
  check_cases(Pass::forward, true, check_stage);
}
TEST_CASE("forward: more families, ragged shapes, masks, heads, layouts", "[more-stage]") {
  check_cases(Pass::forward, false, check_stage);
}

TEST_CASE("forward: every head dimension", "[stage]") {
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr)) continue;
      for (std::int64_t d = 1; d <= max_head_dim; d += d < 70 ? 1 : d == 122 ? 6 : 13) {
        if (!stage->supports.head_dim(d)) continue;
        Problem problem;
        problem.Nq = 35;
        problem.Nk = 70;
        problem.d = d;
        problem.dtype = stage->supports.dtypes[d / 8 % stage->supports.dtypes.size()];
        problem.causal = d / 16 % 2 == 0;
        INFO(to_string(problem));
        const Inputs inputs = make_inputs(input_families()[d % input_families().size()], problem, d);
        check_beside_stage_before(*stage, for_stage(*stage, inputs), Layout::padded);
      }
    }
  }
}

/// For each head dimension that a stage of kernels has a kernel for, each of its dtypes and both masks: so
/// many rows and keys that each has several tiles, and a part of one.
template <class Body>
void for_each_kernel(const Stage& stage, Body body) {
  std::uint64_t seed = 0;
  for (std::int64_t d : {32, 64, 96, 128, 192, 256}) {
    for (Dtype dtype : stage.supports.dtypes) {
      for (bool causal : {false, true}) {
        if (!stage.supports.head_dim(d)) continue;
        Problem problem;
        problem.q_heads = 2;
        problem.Nq = 300;
        problem.Nk = 333;
        problem.d = d;
        problem.dtype = dtype;
        problem.causal = causal;
        ++seed;
        INFO(to_string(problem));
        body(make_inputs(input_families()[seed % input_families().size()], problem, seed));
      }
    }
  }
}

TEST_CASE("forward: several tiles in every kernel", "[stage]") {
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr && stage->backend != Backend::cpu)) continue;
      for_each_kernel(*stage,
                      [&](const Inputs& inputs) { check_stage(*stage, inputs, Layout::rows_first); });
    }
  }
}

TEST_CASE("forward: odd multiples of 8, with so many keys that blocks come in clusters", "[stage]") {
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr && stage->gpu == Gpu::hopper)) continue;
      for (const std::int64_t d : {72, 200}) {
        for (const bool causal : {false, true}) {
          if (!stage->supports.head_dim(d)) continue;
          Problem p;
          p.q_heads = 6;
          p.kv_heads = 3;
          p.Nq = d == 72 ? 1030 : 700;
          p.Nk = d == 72 ? 1100 : 650;
          p.d = d;
          p.dtype = stage->supports.dtypes.back();
          p.causal = causal;
          if (causal) p.scale = -0.2f;
          INFO(to_string(p));
          check_stage(*stage, make_inputs(input_families()[0], p, 13), Layout::rows_first);
          p.Nk = 150;  // under the mask the first row tiles see no key
          if (d == 200) check_stage(*stage, make_inputs(input_families()[0], p, 13), Layout::rows_first);
        }
      }
    }
  }
}

TEST_CASE("forward: a window that many tiles of rows go along", "[stage]") {
  // More row tiles than the emulator has multiprocessors, each with more tiles of keys than there are
  // buffers, and warps that see none of the first or the last ones.
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr && stage->supports.features.window)) continue;
      for (const std::int64_t d : {64, 128}) {
        Problem p;
        p.q_heads = 6;
        p.kv_heads = 3;
        p.Nq = 800;
        p.Nk = 900;
        p.d = d;
        p.dtype = stage->supports.dtypes.front();
        p.window = {150, 40};
        p.causal = d == 128;
        if (stage->supports.features.packing && d == 64) p.packing = packing_of(p, Packed::several);
        INFO(to_string(p));
        check_stage(*stage, make_inputs(input_families()[0], p, 11), Layout::rows_first);
      }
    }
  }
}

TEST_CASE("forward: one tile of rows and several of keys", "[stage]") {
  // What a step writes to memory the next one reads, with no other tile of rows in between.
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr && stage->backend != Backend::cpu)) continue;
      for (std::int64_t Nq : {1, 17, 32}) {
        Problem problem;
        problem.q_heads = 2;
        problem.Nq = Nq;
        problem.Nk = 130;
        problem.d = 64;
        problem.dtype = stage->supports.dtypes.front();
        problem.causal = Nq == 17;
        INFO(to_string(problem));
        check_stage(*stage, make_inputs(input_families()[0], problem, 7), Layout::rows_first);
      }
    }
  }
}

/// A layer of a real model, all of its heads.
Inputs model_activations() {
  const auto arrays = read_npz(FLASHLADDER_SOURCE_DIR "/common/data/minilm_layer.npz");
  Inputs inputs;
  inputs.problem.q_heads = inputs.problem.kv_heads = 12;
  inputs.problem.Nq = inputs.problem.Nk = 512;
  inputs.problem.d = 32;
  inputs.Q = arrays.at("q").values;
  inputs.K = arrays.at("k").values;
  inputs.V = arrays.at("v").values;
  return inputs;
}

TEST_CASE("forward: the activations of a real model", "[stage]") {
  Inputs inputs = model_activations();
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr)) continue;
      for (bool causal : {false, true}) {
        inputs.problem.causal = causal;
        check_beside_stage_before(*stage, for_stage(*stage, inputs), Layout::rows_first);
      }
    }
  }
}

// A masked score replaces what K gave; a masked P is 0, and 0 times a NaN of V is NaN: that one may reach
// neighbours in the same tile.
TEST_CASE("forward: a NaN reaches every row that sees it, and no other head", "[stage]") {
  Problem problem;
  problem.q_heads = problem.kv_heads = 2;
  problem.Nq = 50;
  problem.Nk = 70;
  problem.d = 32;
  problem.causal = true;
  const std::int64_t key = 45;  // of head 1: rows 25 ... 49 see it
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr)) continue;
      for (auto member : {&Inputs::K, &Inputs::V}) {
        Inputs inputs = random_inputs(problem, 9);
        (inputs.*member)[(problem.Nk + key) * problem.d + 7] = NAN;
        const Inputs own = for_stage(*stage, inputs);
        ForwardRun run(*stage, own);
        Workspace workspace(free_memory(stage->backend));
        run.run(workspace);
        const Result<float> result = run.result();
        for (std::int64_t row = 0; row < 2 * problem.Nq; ++row) {
          const bool sees = row >= problem.Nq && problem.visible_keys(row % problem.Nq) > key;
          INFO("row " << row);
          const bool in_O = std::isnan(result.O[row * problem.d + 7]);
          REQUIRE((in_O == sees || (member == &Inputs::V && in_O && row >= problem.Nq)));
          REQUIRE(std::isnan(result.L[row]) == (sees && member == &Inputs::K));
        }
      }
      // A row whose scores are all NaN is none without keys.
      Inputs inputs = random_inputs(problem, 9);
      const std::int64_t only = problem.Nq + 30;  // of head 1
      inputs.Q[only * problem.d + 7] = NAN;
      const Inputs own = for_stage(*stage, inputs);
      ForwardRun run(*stage, own);
      Workspace workspace(free_memory(stage->backend));
      run.run(workspace);
      const Result<float> result = run.result();
      for (std::int64_t row = 0; row < 2 * problem.Nq; ++row) {
        INFO("NaN in Q, row " << row);
        REQUIRE(std::isnan(result.O[row * problem.d + 3]) == (row == only));
        REQUIRE(std::isnan(result.L[row]) == (row == only));
      }
    }
  }
}

TEST_CASE("backward: a NaN reaches dQ of every row that sees it, and no other head", "[stage]") {
  Problem problem;
  problem.q_heads = problem.kv_heads = 2;
  problem.Nq = 50;
  problem.Nk = 70;
  problem.d = 32;
  problem.causal = true;
  const std::int64_t key = 45,
                     only = 30;  // of head 1: rows 25 ... 49 see the key; this one has the NaN itself
  const std::int64_t column = 7;
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(Pass::backward))) continue;
      // An infinity in K may give a score of -inf and a P of 0: then dS K is 0 times infinity.
      for (const auto& [of, value] :
           {std::pair("Q", NAN), {"K", NAN}, {"K", INFINITY}, {"V", NAN}, {"dO", NAN}}) {
        Inputs inputs = random_inputs(problem, 9);
        std::vector<float> dO = random_output_gradient(problem, 5);
        const bool of_row = of == std::string_view("Q") || of == std::string_view("dO");
        auto& spoilt = of == std::string_view("Q")   ? inputs.Q
                       : of == std::string_view("K") ? inputs.K
                       : of == std::string_view("V") ? inputs.V
                                                     : dO;
        spoilt[(of_row ? problem.Nq + only : problem.Nk + key) * problem.d + column] = value;
        const Inputs own = for_stage(*stage, inputs);
        BackwardRun run(*stage, own, saved_forward(own), dO);
        Workspace workspace(free_memory(stage->backend));
        run.run(workspace);
        const Gradients<float> result = run.result();
        for (std::int64_t row = 0; row < 2 * problem.Nq; ++row) {
          INFO(value << " in " << of << ", row " << row);
          const std::int64_t i = row - problem.Nq;  // of head 1
          const bool sees = i >= 0 && (of_row ? i == only : problem.visible_keys(i) > key);
          for (std::int64_t c = 0; c < problem.d; ++c) {
            const bool in_dQ = std::isnan(result.dQ[row * problem.d + c]),
                       must = sees && (std::isnan(value) || c == column),
                       may = i >= 0 && !of_row;  // 0 times NaN is NaN, where it is masked
            REQUIRE((in_dQ == must || (in_dQ && may)));
          }
        }
      }
    }
  }
}

/// Puts NaN where a tensor [heads, rows, columns] has rows first ... end - 1.
void spoil(std::vector<float>& x, std::int64_t rows, std::int64_t columns, std::int64_t first,
           std::int64_t end) {
  for (std::int64_t e = 0; e < std::ssize(x); ++e) {
    const std::int64_t row = e / columns % rows;
    if (row >= first && row < end) x[e] = NAN;
  }
}

// Then a warp asks twice which of them are live.
TEST_CASE("a block map of more blocks than a warp has lanes", "[stage]") {
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      for (const auto& [Nq, Nk] : {std::pair(130, 4500), {4500, 130}}) {
        Problem p{.q_heads = 2, .kv_heads = 1, .Nq = Nq, .Nk = Nk, .d = 32};
        p.block_map = random_block_map(p, 1, 2, 0.1, 7);
        if (!takes_part(*stage, stage->supports.takes(p))) continue;
        const Inputs inputs = for_stage(*stage, random_inputs(p, 7));
        INFO(to_string(inputs.problem));
        check_stage(*stage, inputs, Layout::contiguous);
        check_backward_of(*stage, inputs, Layout::contiguous);
      }
    }
  }
}

// Such as stage 82 sorts: their row tiles are more than one block finds the places of.
TEST_CASE("forward: more packed sequences than a block has threads", "[stage]") {
  Problem p;
  p.Nq = p.Nk = 3 * 130;
  p.d = 32;
  p.causal = true;
  std::vector<int> begins;
  for (int row = 0; row <= p.Nq; row += 3) begins.push_back(row);
  p.packing = Packing::of(begins, begins);
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(Pass::forward) && stage->supports.takes(p))) continue;
      check_stage(*stage, for_stage(*stage, random_inputs(p, 10)), Layout::contiguous);
    }
  }
}

// And of packed sequences no other one, though rows and keys of several are closer than a tile is long.
TEST_CASE("packed sequences do not see a neighbour's NaN", "[stage]") {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 100;
  p.d = 32;
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      for (bool causal : {false, true}) {
        p.causal = causal;
        p.packing = packing_of(p, Packed::with_empty);
        if (!takes_part(*stage, stage->supports.takes(p))) continue;
        const auto &rows = p.packing.cu_seqlens_q, &keys = p.packing.cu_seqlens_k;
        const Inputs right = for_stage(*stage, random_inputs(p, 9));
        const std::vector<float> right_dO = random_output_gradient(right.problem, 9);
        for (int s : {1, 3}) {  // which have rows and keys
          INFO("sequence " << s << " is NaN");
          const auto in_rows = [&](std::vector<float> x, std::int64_t columns) {
            spoil(x, p.Nq, columns, rows[s], rows[s + 1]);
            return x;
          };
          const auto in_keys = [&](std::vector<float> x) {
            spoil(x, p.Nk, p.d, keys[s], keys[s + 1]);
            return x;
          };
          Inputs wrong = right;
          wrong.Q = in_rows(right.Q, p.d);
          wrong.K = in_keys(right.K);
          wrong.V = in_keys(right.V);
          const Stage& of_forward =  // some have a backward pass alone
              stage->has(Pass::forward) ? *stage : on_backend(find_stage(80), stage->backend);
          const auto outputs = [&](const Inputs& inputs, const std::vector<float>& dO) {
            ForwardRun forward(of_forward, inputs);
            Workspace workspace(free_memory(stage->backend));
            workspace.poison = true;
            forward.run(workspace);
            const Result<float> result = forward.result();
            std::vector<std::vector<float>> found = {in_rows(result.O, p.d), in_rows(result.L, 1)};
            if (!stage->has(Pass::backward)) return found;
            BackwardRun backward(*stage, inputs, {result, {}, dO}, Layout::contiguous);
            backward.run(workspace);
            const Gradients<float> gradients = backward.result();
            for (auto&& of : {in_rows(gradients.dQ, p.d), in_keys(gradients.dK), in_keys(gradients.dV)})
              found.push_back(of);
            return found;
          };
          const auto expected = outputs(right, right_dO), found = outputs(wrong, in_rows(right_dO, p.d));
          for (std::size_t i = 0; i < expected.size(); ++i) {
            for (std::size_t e = 0; e < expected[i].size(); ++e) {
              const float a = expected[i][e], b = found[i][e];
              if (std::isnan(a)) continue;  // of the sequence itself
              INFO("output " << i << ", element " << e);
              REQUIRE((a == b || std::abs(a - b) < 1e-2f));  // dQ is added up in any order
            }
          }
        }
      }
    }
  }
}

/// Both masks at each length that has its turn, with head dimension, dtype and family changing from one to
/// the next; the longest at d = 32.
template <class Body>
void for_each_long(const Stage& stage, std::span<const Shape> long_shapes, Body body) {
  std::size_t turn = 0;
  for (const Shape& shape : long_shapes) {
    for (bool causal : {false, true}) {
      Problem problem;
      problem.Nq = shape.Nq;
      problem.Nk = shape.Nk;
      problem.d = shape.Nq < 4000 ? std::array{32, 64, 128}[turn % 3] : 32;
      problem.dtype = stage.supports.dtypes[turn / 2 % stage.supports.dtypes.size()];
      problem.causal = causal;
      const Family& family = input_families()[turn++ % input_families().size()];
      if (!has_its_turn(stage, turn)) continue;
      INFO(to_string(problem) << ", " << family.name);
      body(for_stage(stage, make_inputs(family, problem, turn)));
    }
  }
}

TEST_CASE("forward: long sequences", "[long-stage]") {
  constexpr Shape long_shapes[] = {{1024, 1024}, {1024, 1023}, {1023, 1024}, {1, 8192},
                                   {4096, 4096}, {4224, 4224}, {100, 16384}};
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr)) continue;
      for_each_long(*stage, long_shapes,
                    [&](const Inputs& inputs) { check_stage(*stage, inputs, Layout::contiguous); });
    }
  }
}

TEST_CASE("forward: the same result every time", "[stage]") {
  Problem problem;
  problem.q_heads = problem.kv_heads = 3;
  problem.Nq = 203;
  problem.Nk = 301;
  problem.causal = true;
  const Inputs inputs = random_inputs(problem, 3);
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->forward != nullptr)) continue;
      const Inputs own = for_stage(*stage, inputs);
      ForwardRun run(*stage, own);
      Workspace workspace(free_memory(stage->backend));
      run.run(workspace);
      const Result<float> first = run.result();
      for (int repeat = 0; repeat < 20; ++repeat) {
        run.poison();
        run.run(workspace);
        REQUIRE(run.result().O == first.O);
        REQUIRE(run.result().L == first.L);
      }
    }
  }
}

TEST_CASE("backward: the same result every time, dQ where nothing is added in any order", "[stage]") {
  Problem problem;
  problem.q_heads = 4;
  problem.kv_heads = 2;
  problem.Nq = 203;
  problem.Nk = 301;
  problem.causal = true;
  const Inputs inputs = random_inputs(problem, 3);
  int ordered = 0;
  for (const Stage* stage : tested_stages()) {
    if (stage->has(Pass::backward) && !adds_in_any_order(*stage, problem)) ++ordered;
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(Pass::backward))) continue;
      const Inputs own = for_stage(*stage, inputs);
      BackwardRun run(*stage, own, saved_forward(own), random_output_gradient(own.problem, 5));
      Workspace workspace(free_memory(stage->backend));
      run.run(workspace);
      const Gradients<float> first = run.result();
      // The emulator has orders of its own for this: gpu_claims_test.cpp.
      const int repeats = stage->backend == Backend::cuda ? 20 : 3;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        run.poison();
        run.run(workspace);
        const Gradients<float> now = run.result();
        REQUIRE(now.dK == first.dK);
        REQUIRE(now.dV == first.dV);
        if (!adds_in_any_order(*stage, problem)) REQUIRE(now.dQ == first.dQ);
      }
    }
  }
  CHECK(ordered >= 6);  // 10, 30, 39, 57, 58 and 64
}

TEST_CASE("backward: d = 1, where small numbers are exact", "[stage]") {
  // One query sees two keys with equal scores: P = 1/2, O = 3, dP = (4, 8), D = 6, dS = (-1, 1).
  Problem problem;
  problem.Nk = 2;
  problem.d = 1;
  const Inputs inputs{problem, {5}, {0, 0}, {2, 4}};
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->backward != nullptr && stage->supports.head_dim(1))) continue;
      BackwardRun run(*stage, inputs, {{3}, {std::log(2.0f)}}, {2}, Layout::contiguous);
      Workspace workspace;
      run.run(workspace);
      const Gradients<float> got = run.result();
      const auto near = [](float a, float b) { return std::abs(a - b) <= 1e-5f; };
      CHECK(near(got.dQ[0], 0));
      CHECK((near(got.dK[0], -5) && near(got.dK[1], 5)));
      CHECK((near(got.dV[0], 1) && near(got.dV[1], 1)));
    }
  }
}

TEST_CASE("backward: all families, ragged shapes, masks, heads, layouts", "[stage]") {
  check_cases(Pass::backward, true, check_backward_of);
}
TEST_CASE("backward: more families, ragged shapes, masks, heads, layouts", "[more-stage]") {
  check_cases(Pass::backward, false, check_backward_of);
}

TEST_CASE("backward: several tiles in every kernel", "[stage]") {
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->backward != nullptr && stage->backend != Backend::cpu)) continue;
      for_each_kernel(*stage,
                      [&](const Inputs& inputs) { check_backward_of(*stage, inputs, Layout::rows_first); });
    }
  }
}

TEST_CASE("backward: as many heads as multiprocessors, and twice as many", "[stage]") {
  // Then a block may have all keys of a head, and one head after another.
  struct Heads {
    std::int64_t of_each, group, Nq, Nk, d;
    bool causal;
  };
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      const bool stays =
          stage->has(Pass::backward) && stage->backend != Backend::cpu && blocks_stay(*stage);
      if (!takes_part(*stage, stays)) continue;
      const int all = stage->backend == Backend::cuda ? gpu_multiprocessors() : simt::multiprocessors;
      // Under the mask with more rows than keys the first ones see no key.
      for (const Heads& one : {Heads{2, 1, 203, 286, 64, true}, Heads{1, 2, 300, 170, 72, true},
                               Heads{1, 1, 150, 301, 128, false}, Heads{2, 1, 286, 150, 64, false}}) {
        if (!stage->supports.head_dim(one.d)) continue;
        Problem p;
        p.kv_heads = one.of_each * all;
        p.q_heads = one.group * p.kv_heads;
        p.Nq = one.Nq;
        p.Nk = one.Nk;
        p.d = one.d;
        p.causal = one.causal;
        p.dtype = one.causal ? Dtype::bf16 : Dtype::fp16;
        INFO(to_string(p));
        check_backward_of(*stage, random_inputs(p, 14), Layout::rows_first);
      }
    }
  }
}

TEST_CASE("backward: V much larger than K, and large from key 200 on", "[stage]") {
  Problem problem;
  problem.q_heads = 2;
  problem.Nq = 40;
  problem.Nk = 300;
  problem.d = 64;
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(Pass::backward))) continue;
      Inputs inputs = random_inputs(problem, 11);
      for (float& k : inputs.K) k /= 64;
      for (std::int64_t e = 0; e < std::ssize(inputs.V); ++e)
        inputs.V[e] *= e / problem.d % problem.Nk < 200 ? 1.f : 256.f;
      check_backward_of(*stage, for_stage(*stage, inputs), Layout::contiguous);
    }
  }
}

TEST_CASE("backward: one key, or one V, much larger than all others, wherever it is", "[stage]") {
  // Of each head another one, of all that threads load together.
  Problem problem;
  problem.q_heads = problem.kv_heads = 16;
  problem.Nq = 16;
  problem.Nk = 20;
  problem.d = 64;
  constexpr float much = 2048;
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(Pass::backward))) continue;
      for (auto member : {&Inputs::K, &Inputs::V}) {
        Inputs inputs = random_inputs(problem, 13);
        if (member == &Inputs::K) {
          for (float& q : inputs.Q) q /= much;  // no softmax with a single key
        }
        for (std::int64_t h = 0; h < problem.kv_heads; ++h) {
          for (std::int64_t c = 0; c < problem.d; ++c)
            (inputs.*member)[(h * problem.Nk + h) * problem.d + c] *= much;
        }
        INFO((member == &Inputs::K ? "K" : "V"));
        check_backward_of(*stage, for_stage(*stage, inputs), Layout::contiguous);
      }
    }
  }
}

TEST_CASE("backward: dQ as large as it can be", "[stage]") {
  // All keys are alike but for their sign, which V has, too: the parts of dQ do not cancel. A row's dO has
  // all columns or the last one alone. With `tiny` numbers, of fp16, each dS is a little above 2^-25, half
  // of the least number that there is: it is rounded up to that. Such a dQ cannot be judged, but for its
  // sign.
  const auto check = [](const Stage& stage, bool tiny) {
    Problem problem;
    problem.q_heads = 2;
    problem.Nq = 40;
    problem.Nk = tiny ? 266 : 300;  // with 266 keys L and P are rounded so that P is above 1 / 266, by 6e-7
    problem.d = 64;
    const float of_V = tiny ? 0x1p-6f : 1.f, of_dO = tiny ? 266 * 0x1p-25f : 1.f;
    Inputs inputs = random_inputs(problem, 12);
    std::fill(inputs.Q.begin(), inputs.Q.end(), 0.f);
    for (std::int64_t e = 0; e < std::ssize(inputs.K); ++e) {
      inputs.K[e] = e / problem.d % 2 == 0 ? 1.f : -1.f;
      inputs.V[e] = of_V * inputs.K[e];
    }
    std::vector<float> dO(inputs.Q.size());
    for (std::int64_t e = 0; e < std::ssize(dO); ++e)
      dO[e] = e / problem.d % 2 == 0 || e % problem.d == problem.d - 1 ? of_dO : 0.f;
    bool blind = false;
    const CheckedBackward checked =
        check_gradients_of(stage, for_stage(stage, inputs), dO, Layout::contiguous, &blind);
    if (!tiny) CHECK(!blind);
    CHECK(std::all_of(checked.result.dQ.begin(), checked.result.dQ.end(), [](float x) { return x >= 0; }));
  };
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->has(Pass::backward))) continue;
      check(*stage, false);
      if (stage->supports.dtype(Dtype::fp16)) check(*stage, true);
    }
  }
}

TEST_CASE("backward: long sequences", "[long-stage]") {
  constexpr Shape long_shapes[] = {{1024, 1023}, {1023, 1024}, {1, 4096}, {1056, 300}, {100, 4096}};
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->backward != nullptr)) continue;
      for_each_long(*stage, long_shapes,
                    [&](const Inputs& inputs) { check_backward_of(*stage, inputs, Layout::contiguous); });
    }
  }
}

TEST_CASE("backward: the activations of a real model", "[stage]") {
  const Inputs all = model_activations();
  for (const Stage* stage : tested_stages()) {
    DYNAMIC_SECTION(folder(*stage)) {
      if (!takes_part(*stage, stage->backward != nullptr)) continue;
      for (bool causal : {false, true}) {
        Inputs inputs = all;
        inputs.problem.causal = causal;
        check_backward_beside_stage_before(*stage, for_stage(*stage, inputs), Layout::rows_first);
      }
    }
  }
}

}  // namespace
