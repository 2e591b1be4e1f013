// The claims of the GPU stages, proven from the ledger: every closed form of every stage, exactly, on
// shapes with ends in the middle of tiles, Nq != Nk, grouped heads, masks; and what each stage claims over
// the one before.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "cases.hpp"
#include "catch.hpp"
#include "common/check/count.hpp"
#include "common/check/diagnose.hpp"
#include "common/check/inputs.hpp"
#include "common/check/run.hpp"
#include "common/check/turn.hpp"

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

std::vector<Problem> claim_problems() {
  std::vector<Problem> all;
  for (bool causal : {false, true}) {
    for (std::int64_t d : {32, 64, 96, 128, 256, 8, 72, 168}) {
      all.push_back(problem(1, 2, 2, 128, 128, d, causal));
      all.push_back(problem(2, 4, 2, 65, 97, d, causal));
      all.push_back(
          problem(1, 3, 1, 130, 31, d, causal));  // under the mask, whole tiles of rows see no key
      all.push_back(problem(1, 1, 1, 260, 260, d, causal));
      all.back().scale = -1 / std::sqrt(static_cast<float>(d));
      all.push_back(problem(1, 1, 1, 1, 339, d, causal));
    }
  }
  return all;
}

/// The problem with what does not change which keys a row sees, each alone, beside a window and, under the
/// causal mask, beside a prefix, which is longer than one of the packed sequences.
std::vector<Problem> other_variants(const Problem& plain) {
  std::vector<Problem> masks(2, plain), all;
  masks.back().window = {40, 9};
  if (plain.causal) {
    masks.push_back(plain);
    masks.back().prefix = 90;
  }
  for (const Problem& p : masks) {
    all.insert(all.end(), 4, p);
    all.end()[-4].bias_batch = 1;
    all.end()[-4].bias_heads = p.q_heads;
    all.end()[-4].bias_rows = p.Nq;
    all.end()[-3].alibi = true;
    all.end()[-2].sinks = true;
    all.end()[-1].dropout = {0.2f, 3};
    for (const bool of_heads : {false, true}) {
      all.push_back(p);
      all.back().block_map =
          random_block_map(p, of_heads ? p.batch : 1, of_heads ? p.q_heads : 1, of_heads ? 0.3 : 0.6, p.d);
    }
    if (p.batch > 1) continue;
    for (const Packed how : {Packed::several, Packed::with_empty}) {
      all.push_back(p);
      all.back().packing = packing_of(p, how);
    }
  }
  return all;
}

/// For the stages that take more than plain attention.
std::vector<Problem> variant_problems() {
  std::vector<Problem> all;
  for (std::int64_t d : {32, 64, 72, 128, 256}) {
    for (const Window& window : {Window{40, -1}, Window{0, 0}, Window{-1, 70}, Window{130, 200}}) {
      all.push_back(problem(1, 2, 1, 300, 333, d, window.left == 40));
      all.back().window = window;
      all.push_back(problem(1, 2, 2, 470, 160, d, window.left == 0));  // whole tiles of rows see no key
      all.back().window = window;
    }
    for (float softcap : {30.f, 0.5f}) {
      all.push_back(problem(1, 2, 1, 300, 333, d, softcap == 30));
      all.back().softcap = softcap;
      all.push_back(problem(1, 3, 1, 130, 31, d, softcap == 30));
      all.back().softcap = softcap;
    }
    for (std::int64_t prefix : {3, 128, 200}) {
      all.push_back(problem(2, 2, 1, 300, 333, d, true));
      all.back().prefix = prefix;
      all.push_back(problem(1, 2, 2, 470, 160, d, true));
      all.back().prefix = prefix;
    }
    if (d > 128) continue;
    for (const Problem& p : other_variants(problem(2, 4, 2, 300, 333, d, d == 64))) all.push_back(p);
    for (const Problem& p : other_variants(problem(1, 2, 2, 470, 160, d, true))) all.push_back(p);
    // More blocks than a warp has lanes.
    if (d == 64) {
      for (const auto& [Nq, Nk] : {std::pair(130, 4500), {4500, 130}}) {
        all.push_back(problem(1, 1, 1, Nq, Nk, d, false));
        all.back().block_map = random_block_map(all.back(), 1, 1, 0.1, 5);
      }
    }
  }
  for (std::int64_t d : {136, 192, 256}) {  // smaller ones, which take the emulator no longer
    for (const Problem& p : other_variants(problem(1, 2, 1, 150, 270, d, d == 136))) all.push_back(p);
  }
  return all;
}

/// Proves the closed forms of a stage's pass on each of the problems that the stage takes and `turn` has.
void prove(const Stage& stage, const Claim& claim, const CountedPass& pass, std::vector<Problem> problems,
           const Turn& turn) {
  std::size_t taken = 0;  // one dtype after the other, at each head dimension and mask
  for (std::size_t i = 0; i < problems.size(); ++i) {
    Problem& p = problems[i];
    if (!stage.supports.takes(p)) continue;
    p.dtype = stage.supports.dtypes[taken++ % stage.supports.dtypes.size()];
    if (!turn.takes(i + static_cast<std::size_t>(stage.number))) continue;  // others of each stage
    const simt::Ledger ledger = pass.count(stage, random_inputs(p, 1), {}, nullptr);
    const Symbols symbols = claim.symbols(p, pass.pass);
    for (const ClosedForm& form : pass.forms) {
      INFO(label(stage) << ", " << pass.name << ", " << to_string(p) << ": " << form.counter << " = "
                        << form.text());
      INFO("counted: " << count_of(ledger, form.counter) << ", the form: " << form.value(symbols));
      CHECK(form.holds_for_random(count_of(ledger, form.counter), symbols));
    }
  }
}

/// More tiles than multiprocessors, for Hopper's stages whose blocks stay.
std::vector<Problem> problems_of_many_tiles(const Stage& stage, Pass pass) {
  if (stage.gpu != Gpu::hopper) return {};
  // More K and V than L2 has room for; under the mask some rows see no key. In the last two blocks may
  // come in clusters, which takes many keys at d = 72.
  if (pass == Pass::forward)
    return {problem(1, 14, 7, 600, 600, 64, true),  problem(1, 9, 9, 600, 600, 64, true),
            problem(2, 16, 8, 300, 170, 256, true), problem(1, 20, 20, 330, 330, 72, false),
            problem(1, 12, 6, 300, 170, 200, true), problem(1, 9, 9, 1024, 1050, 72, true)};
  if (!blocks_stay(stage)) return {};
  return {// Keys with one tile of rows, behind which the place of K and V is waited for.
          problem(1, 14, 7, 600, 600, 64, true), problem(1, 9, 9, 600, 600, 40, true),
          problem(2, 20, 20, 33, 130, 64, false), problem(1, 40, 40, 60, 140, 32, true),
          // As many tiles of rows as stage 66 stays for, and one more; and as stage 67 does.
          problem(1, 2, 2, 1536, 130, 64, false), problem(1, 1, 1, 1600, 130, 64, false),
          problem(1, 32, 1, 60, 130, 64, false), problem(1, 33, 1, 60, 130, 64, false)};
}

TEST_CASE("every closed form is what the ledger says", "[stage-claim]") {
  const Turn turn = turn_of_environment();
  for (const Stage* stage : stages()) {
    const Claim* claim = claim_of(*stage);
    if (claim == nullptr) continue;
    DYNAMIC_SECTION(folder_name(*stage)) {
      std::vector<Problem> problems = claim_problems();
      std::ranges::copy(variant_problems(), std::back_inserter(problems));
      for (const CountedPass& pass : passes_of(*stage)) {
        REQUIRE(pass.forms.size() > 10);
        prove(*stage, *claim, pass, problems, turn);
        prove(*stage, *claim, pass, problems_of_many_tiles(*stage, pass.pass), Turn());
      }
    }
  }
}

TEST_CASE("a closed form that random numbers may exceed is what the kindest numbers need", "[gpu-claim]") {
  int forms = 0;
  for (const Stage* stage : stages()) {
    const Claim* claim = claim_of(*stage);
    if (claim == nullptr || std::ranges::none_of(claim->forward.forms, &ClosedForm::random_too)) continue;
    for (std::int64_t d : {32, 64, 96, 128, 192, 256, 72, 200}) {
      if (!stage->supports.head_dim(d)) continue;
      Problem p = problem(1, 2, 1, 1, 1, d, false);
      const Symbols tile = claim->symbols(p);
      p.Nq = 2 * tile.Br;  // whole tiles: a thread all of whose scores are masked may need more
      p.Nk = 3 * tile.Bc;
      p.dtype = stage->supports.dtypes[static_cast<std::size_t>(d) / 32 % stage->supports.dtypes.size()];
      const simt::Ledger ledger = count_forward(*stage, steady_inputs(p, tile.Bc));
      const Symbols symbols = claim->symbols(p);
      for (const ClosedForm& form : claim->forward.forms) {
        forms += form.random_too;
        INFO(label(*stage) << ", " << to_string(p) << ": " << form.counter << " = " << form.text());
        CHECK(count_of(ledger, form.counter) == form.value(symbols));
      }
    }
  }
  CHECK(forms >= 3 * 8);  // of 47
}

TEST_CASE("an expression is its text and its value", "[gpu-claim]") {
  using namespace claims;
  const Problem p = problem(2, 4, 2, 65, 97, 64, true);  // the first tile of rows sees 64 keys, the last 97
  const Symbols n(p, {.Br = 32, .Bc = 32, .warps = 4, .share = 2});
  const std::tuple<Expr, const char*, std::int64_t> all[] = {
      {BH * Nq * d, "BH Nq d", 8 * 65 * 64},
      {4 * (2 * BH * Nq), "4 * 2 BH Nq", 4 * 2 * 8 * 65},
      {BH * (Tr * Tc + ceil_div(Nq, 4)), "BH (Tr Tc + ceil(Nq / 4))", 8 * (3 * 4 + 17)},
      {Nq - (Br + 1) + 2, "Nq - (Br + 1) + 2", 34},
      {Nq - (Br - 1), "Nq - (Br - 1)", 34},
      {2 * (2 * warps / share) * Br, "2 (2 warps / share) Br", 256},
      {warps / share * Br, "(warps / share) Br", 64},
      {ceil_div(BH * Tr, warps * share), "ceil(BH Tr / (warps share))", 3},
      {BH * Tr * if_causal(Tc, Tc - floor_div(Nk, Bc)), "BH Tr (Tc if causal, else Tc - floor(Nk / Bc))",
       8 * 3 * 4},
      {BH * sum(live_i), "BH sum(live_i)", 8 * (2 + 3 + 4)},
      {sum(live_i - whole_i), "sum(live_i - whole_i)", 1 + 1 + 1},
      {sum(live_i * rows_i) * d, "sum(live_i rows_i) d", (2 * 32 + 3 * 32 + 4) * 64},
      {sum(max(min(live_i * Bc, Nk) - Bc, 0)), "sum(max(min(live_i Bc, Nk) - Bc, 0))", 32 + 64 + 65},
      {named("groups", warps / share) * 2, "groups * 2", 4},
  };
  for (const auto& [expression, text, value] : all) {
    CHECK(expression.text() == text);
    CHECK(expression.value(n) == value);
  }
}

TEST_CASE("a claim says what changed, and no more", "[gpu-claim]") {
  for (const Stage* stage : stages()) {
    if (claim_of(*stage) == nullptr) continue;
    const Claim own = own_claim(*stage);
    const auto check = [&](const Forms<ClosedForm>& said, const Forms<ClosedForm>& all, const Stage* before,
                           Forms<ClosedForm> Claim::*pass) {
      if (!said.as_before) return;
      for (const ClosedForm& form : said.forms) {
        const ClosedForm* found = (claim_of(*before)->*pass).find(form.counter);
        INFO(label(*stage) << ": " << form.counter);
        CHECK(all.find(form.counter)->text() == form.text());
        if (found == nullptr) continue;
        ClosedForm old = *found;
        if (said.change != nullptr) said.change(old);  // what it would be if nothing were said of it
        CHECK((old.text() != form.text() || old.least != form.least || old.random_too != form.random_too));
      }
      for (const std::string_view counter : said.dropped) CHECK(all.find(counter) == nullptr);
    };
    check(own.forward, claim_of(*stage)->forward, &find_stage(stage->before), &Claim::forward);
    if (own.forward.as_before && (own.tile_for != nullptr || own.tile != ClaimedTile())) {
      const Claim& before = *claim_of(find_stage(stage->before));
      INFO(label(*stage) << ": its tile");
      CHECK(std::ranges::any_of(stage->supports.head_dims, [&](std::int64_t d) {
        Problem p = problem(1, 1, 1, 4096, 4096, d, false);  // a tile may be for long sequences only
        p.dtype = stage->supports.dtypes.front();
        const ClaimedTile &mine = own.symbols(p), &old = before.symbols(p);
        return mine != old;
      }));
    }
    check(own.backward, claim_of(*stage)->backward, backward_before(*stage), &Claim::backward);
  }
}

/// What `stage` reads and writes in global memory, in elements, all heads together.
struct Traffic {
  std::int64_t read, written;
};
Traffic traffic(int number, const Problem& p) {
  const simt::GlobalTraffic all = count_forward(find_stage(number), random_inputs(p, 1)).global_total();
  return {static_cast<std::int64_t>(all.read_elements()),
          static_cast<std::int64_t>(all.written_elements())};
}

/// Inputs of which each row, and each key, has the same numbers: what is counted depends on nothing else
/// than where tiles lie.
Inputs constant_inputs(const Problem& p) {
  Inputs inputs = random_inputs(p, 1);
  for (std::vector<float>* numbers : {&inputs.Q, &inputs.K, &inputs.V}) std::ranges::fill(*numbers, 0.5f);
  std::ranges::fill(inputs.slopes, 0.125f);
  return inputs;
}

TEST_CASE("a kernel on demand takes the operations of its variants, and none for the others",
          "[gpu-claim]") {
  // Of stage 81 packed sequences with a softcap, beside each sequence alone in stage 75, and a block map
  // with all blocks and dropout, beside dropout alone in stage 78. That sequences are packed, and a map
  // that leaves nothing out, take no operations of numbers.
  for (const auto& [number, d] : {std::pair(75, 64), {75, 128}, {75, 256}, {78, 40}, {78, 128}}) {
    Problem p = problem(1, 2, 1, 390, 390, d, true);
    p.dtype = Dtype::fp16;
    if (number == 75) {
      p.softcap = 30;
      p.packing = packing_of(p, Packed::several);
    } else {
      p.dropout = {0.3f, 5};
      p.block_map = random_block_map(p, 1, 1, 1, 3);
    }
    std::vector<Problem> parts = p.all_sequences();
    for (Problem& part : parts) part.block_map = {};
    for (const CountedPass& pass : passes_of(find_stage(81))) {
      const simt::Ledger own = pass.count(find_stage(81), constant_inputs(p), {}, nullptr);
      const simt::Ledger of_all = pass.count(find_stage(80), constant_inputs(p), {}, nullptr);
      std::vector<simt::Ledger> alone;
      for (const Problem& part : parts)
        alone.push_back(pass.count(find_stage(number), constant_inputs(part), {}, nullptr));
      for (const char* operation : {"add", "mul", "fma", "div", "exp", "exp2", "log"}) {
        std::int64_t wanted = 0;
        for (const simt::Ledger& ledger : alone) wanted += count_of(ledger, operation);
        INFO(pass.name << ", " << to_string(p) << ": " << operation);
        // Backward, what begins adds up rows of zeros in the tiles that no sequence has.
        if (pass.pass == Pass::forward || std::string_view(operation) != "add")
          CHECK(count_of(own, operation) == wanted);
        CHECK(count_of(of_all, operation) >= count_of(own, operation));
      }
      CHECK(count_of(of_all, "mul") > count_of(own, "mul"));
    }
  }
}

TEST_CASE("plain attention takes as much where Hopper's kernel asks a policy as where it asks none",
          "[gpu-claim]") {
  for (const std::int64_t d : {64, 40, 128}) {
    for (const bool causal : {false, true}) {
      Problem p = problem(2, 6, 3, 700, 650, d, causal);
      p.dtype = Dtype::bf16;
      const auto compare = [&](const auto& own, const auto& before, const auto& forms, const char* but) {
        for (const ClosedForm& form : forms) {
          if (form.counter == but) continue;
          INFO(to_string(p) << ": " << form.counter);
          CHECK(count_of(own, form.counter) == count_of(before, form.counter));
        }
      };
      compare(count_forward(find_stage(82), random_inputs(p, 1)),
              count_forward(find_stage(51), random_inputs(p, 1)), claim_of(find_stage(51))->forward.forms,
              "shared_bytes_per_block");  // for what is announced of a row tile
      compare(count_backward(find_stage(83), random_inputs(p, 1)),
              count_backward(find_stage(61), random_inputs(p, 1)), claim_of(find_stage(61))->backward.forms,
              "");
    }
  }
}

TEST_CASE("on Hopper blocks take the row tiles of packed sequences longest first", "[gpu-claim]") {
  // Row tiles of 256 rows with 4, 8 and 11 tiles of keys, with 1, 1, and 4, each in four heads. On the
  // emulator 16 blocks take turns: those with 11 draw 1. As they lie, some with 4 would draw 11.
  Problem p = problem(1, 4, 4, 1000, 1000, 64, true);
  p.dtype = Dtype::bf16;
  p.packing = {
      .sequences = 4, .cu_seqlens_q = {0, 700, 740, 800, 1000}, .cu_seqlens_k = {0, 700, 740, 800, 1000}};
  const simt::Ledger ledger = count_forward(find_stage(82), random_inputs(p, 1));
  CHECK(ledger.tiles == 4 * (4 + 8 + 11 + 1 + 1 + 4));
  CHECK(ledger.most_tiles_of_multiprocessor == 11 + 1);
}

TEST_CASE("under a window a row tile comes to as many tiles of keys however long the sequence is",
          "[gpu-claim]") {
  for (const auto& [left, right] : {std::pair{64, 0}, {100, 30}, {0, 500}}) {
    std::vector<std::uint64_t> all;
    for (std::int64_t N : {1024, 2048, 3072}) {
      Problem p = problem(1, 1, 1, N, N, 32, false);
      p.window = {left, right};
      p.dtype = Dtype::fp16;
      const Symbols n = claim_of(find_stage(72))->symbols(p);
      const std::int64_t most = (n.Br + left + right + n.Bc - 1) / n.Bc + 1;
      all.push_back(count_forward(find_stage(72), random_inputs(p, 1)).tiles);
      CHECK(all.back() <= static_cast<std::uint64_t>(most * n.Tr));
    }
    CHECK(all[2] - all[1] == all[1] - all[0]);
  }
}

TEST_CASE("traffic of the whole stage is that of the papers", "[gpu-claim]") {
  for (const Problem& p : claim_problems()) {
    if (p.causal || !find_stage(10).supports.head_dim(p.d)) continue;
    INFO(to_string(p));
    const std::int64_t BH = p.batch * p.q_heads, Nq = p.Nq, Nk = p.Nk, d = p.d;
    const std::int64_t Br = 64, Bc = 4096 / d, Tr = (Nq + Br - 1) / Br, Tc = (Nk + Bc - 1) / Bc;
    const std::int64_t s = 3;  // passes of the softmax over the scores
    const Traffic naive = traffic(10, p), fa1 = traffic(11, p), deferred = traffic(12, p),
                  parallel = traffic(13, p);
    CHECK(naive.read == BH * ((Tc * Nq + 2 * Tr * Nk) * d + (1 + s) * Nq * Nk));
    CHECK(naive.written == BH * (2 * Nq * Nk + Nq * d + Nq));  // the last is L
    CHECK(fa1.read == BH * (2 * Nk * d + Tc * Nq * d + (Tc - 1) * (Nq * d + 2 * Nq)));
    CHECK(fa1.written == BH * Tc * (Nq * d + 2 * Nq));
    CHECK(deferred.read == fa1.read);
    CHECK(deferred.written == fa1.written - BH * Nq);
    CHECK(parallel.read == BH * (Nq * d + Tr * 2 * Nk * d));
    CHECK(parallel.written == BH * (Nq * d + Nq));
    for (int number : {14, 15}) {
      CHECK(traffic(number, p).read == parallel.read);
      CHECK(traffic(number, p).written == parallel.written);
    }
  }
}

TEST_CASE("the backward pass recomputes: more products, less memory, fewer bytes", "[gpu-claim]") {
  const auto backward = [](int number, const Problem& p) {
    return count_backward(find_stage(number), random_inputs(p, 1));
  };
  const auto elements = [](const simt::Ledger& ledger) {
    const simt::GlobalTraffic all = ledger.global_total();
    return all.read_elements() + all.written_elements() + all.atomic_elements();
  };
  for (const Problem& p : claim_problems()) {
    if (!find_stage(10).supports.head_dim(p.d)) continue;
    INFO(to_string(p));
    const std::uint64_t forward = count_forward(find_stage(10), random_inputs(p, 1)).flops_cuda_cores;
    const simt::Ledger naive = backward(10, p), fa1 = backward(30, p), fa2 = backward(31, p);
    const auto BHNq = static_cast<std::uint64_t>(p.batch * p.q_heads * p.Nq);
    CHECK(naive.flops_cuda_cores == 2 * forward);
    // Of a forward pass in the tiles of 30 and 31, which are smaller: fewer rows and keys that do not
    // exist.
    const Symbols n = claim_of(find_stage(30))->symbols(p);
    const auto own_forward = static_cast<std::uint64_t>(4 * n.Br * n.Bc * n.d * n.BH * n.Tr * n.Tc);
    CHECK(2 * fa1.flops_cuda_cores == 5 * own_forward);
    CHECK(naive.device_bytes == 4 * 2 * BHNq * static_cast<std::uint64_t>(p.Nk));
    CHECK(fa1.device_bytes == 4 * 2 * BHNq);
    CHECK(fa2.device_bytes == 4 * BHNq);
    CHECK(elements(fa1) < elements(naive));
    // With one tile of keys nothing travels in 30 that could be saved, and D goes through memory for
    // nothing.
    if (p.Nk > 32) CHECK(elements(fa2) < elements(fa1));
    if (p.causal) continue;
    CHECK(2 * fa2.flops_cuda_cores == 5 * own_forward);
    const std::uint64_t Tc = static_cast<std::uint64_t>(p.Nk + 31) / 32;
    CHECK(fa2.atomics == Tc * BHNq * static_cast<std::uint64_t>(p.d));
  }
}

TEST_CASE("the backward pass on tensor cores makes 2.5 times the products of a forward pass",
          "[gpu-claim]") {
  // That its closed forms are what the ledger says, the test of the stage's claim shows on these problems;
  // so a fifth of them, another one of each stage, is counted here.
  for (int number : {32, 33, 34, 35, 36, 37, 38, 39}) {
    const Stage& stage = find_stage(number);
    const Claim& claim = *claim_of(stage);
    const ClosedForm *on_tensor_cores = claim.backward.find("flops_tensor_cores"),
                     *on_cuda_cores = claim.backward.find("flops_cuda_cores");
    REQUIRE((on_tensor_cores != nullptr && on_cuda_cores != nullptr));
    std::size_t place = static_cast<std::size_t>(number);
    for (const Problem& p : claim_problems()) {
      const bool is_counted = place++ % 5 == 0;
      if (!stage.supports.head_dim(p.d)) continue;
      INFO(number << ", " << to_string(p));
      const Symbols n = claim.symbols(p);
      const std::int64_t forward = 4 * n.Br * n.Bc * n.D * n.BH * claims::sum(claims::live_i).value(n);
      const Symbols backward = claim.symbols(p, Pass::backward);
      CHECK(2 * on_tensor_cores->value(backward) == 5 * forward);
      CHECK(on_cuda_cores->value(backward) == 0);
      if (!is_counted) continue;
      const simt::Ledger ledger = count_backward(stage, random_inputs(p, 1));
      CHECK(2 * static_cast<std::int64_t>(ledger.flops_tensor_cores) == 5 * forward);
      CHECK(ledger.flops_cuda_cores == 0);
    }
  }
}

/// Head dimensions that show each kernel of a stage: where a kernel takes several, that of its tiles, and
/// the one below, with which columns of zeros begin.
std::vector<std::int64_t> telling_head_dims(const Stage& stage) {
  std::vector<std::int64_t> dims;
  for (std::int64_t d : stage.supports.head_dims) {
    const std::int64_t zeros = claim_of(stage)->symbols(problem(1, 1, 1, 64, 64, d, false)).D - d;
    if (zeros == 0 || zeros == 8) dims.push_back(d);
  }
  return dims;
}

/// Whether dQ has the same bits in every order of blocks and threads. dK and dV must have them.
bool same_bits(const Stage& stage, const Inputs& inputs) {
  INFO(label(stage) << ", " << to_string(inputs.problem));
  BackwardRun run(stage, inputs, saved_forward(inputs), random_output_gradient(inputs.problem, 3));
  Workspace workspace;
  workspace.poison = true;
  const auto ran = [&](simt::Schedule schedule, std::uint64_t seed) {
    simt::Options options;
    options.schedule = schedule;
    options.seed = seed;
    options.os_threads = 1;  // the order is that of the schedule, and not that of a race between OS threads
    simt::Emulator emulator(options);
    const simt::UseEmulator use(emulator);
    run.poison();
    run.run(workspace);
    return run.result();
  };
  const Gradients<float> first = ran(simt::Schedule::forward, 0);
  bool same = true;
  const auto again = [&](simt::Schedule schedule, std::uint64_t seed) {
    const Gradients<float> now = ran(schedule, seed);
    same &= now.dQ == first.dQ;
    CHECK(now.dK == first.dK);
    CHECK(now.dV == first.dV);
  };
  again(simt::Schedule::reverse, 0);
  for (std::uint64_t seed = 0; seed < 3; ++seed) again(simt::Schedule::random, seed);
  return same;
}

TEST_CASE(
    "a backward pass gives the same bits in every order of blocks and threads, unless it adds in any order",
    "[gpu-claim]") {
  const Turn turn = turn_of_environment();
  int deterministic = 0, atomic = 0;
  for (const Stage* stage : stages()) {
    if (stage->backward == nullptr || claim_of(*stage) == nullptr) continue;
    std::vector<Problem> problems;
    for (std::int64_t d : telling_head_dims(*stage)) {
      for (bool causal : {false, true}) {
        // More tiles of keys than splits, and under the mask rows that only some of them come to.
        Problem p = problem(1, 4, 2, 203, 0, d, causal);
        p.Nk = 2 * claim_of(*stage)->symbols(p, Pass::backward).Bc + 30;
        p.dtype = stage->supports.dtypes[problems.size() / 2 % stage->supports.dtypes.size()];
        problems.push_back(p);
      }
    }
    // More tiles of keys than multiprocessors: which block draws which is chance. And a head for each of
    // them.
    if (blocks_stay(*stage)) {
      for (const std::int64_t heads : {10, 16}) {
        for (const bool causal : {false, true}) {
          problems.push_back(problem(1, heads, heads, 203, 286, 64, causal));
          problems.back().dtype = stage->supports.dtypes.front();
        }
      }
    }
    if (adds_in_any_order(*stage, problems.front())) {
      ++atomic;  // and the orders are others, so that it shows
      CHECK_FALSE(same_bits(*stage, random_inputs(problems.front(), 3)));
      continue;
    }
    ++deterministic;
    std::size_t place = static_cast<std::size_t>(stage->number);
    for (const Problem& p : problems) {
      if (turn.takes(place++)) CHECK(same_bits(*stage, random_inputs(p, 3)));
    }
  }
  CHECK(deterministic >= 8);  // 10, 30, 39, 57, 58, 64, 67 and 68
  CHECK(atomic >= 13);        // 31 to 38, 52 to 56
}

TEST_CASE("extra memory of stage 39 is at most linear in N, and linear where its splits are all there",
          "[gpu-claim]") {
  const Claim& claim = *claim_of(find_stage(39));
  const ClosedForm* form = claim.backward.find("device_bytes");
  REQUIRE(form != nullptr);
  for (std::int64_t heads : {1, 4, 16, 128}) {
    const std::int64_t most = (256 + heads - 1) / heads;  // splits
    for (std::int64_t d : {64, 256}) {
      for (std::int64_t N = 512; N <= 131072; N *= 2) {
        const Symbols n = claim.symbols(problem(1, heads, heads, N, N, d, false));
        const std::int64_t bytes = form->value(n);
        INFO(heads << " heads, N = " << N << ", d = " << d);
        CHECK(bytes <= 4 * heads * n.Tr * n.Br * (2 + most * d));
        if (N >= 2 * n.Bc * most)
          CHECK(form->value(claim.symbols(problem(1, heads, heads, 2 * N, 2 * N, d, false))) == 2 * bytes);
      }
    }
  }
}

/// Tiles of row tile n.i that hold a visible pair of row and key, and those of them that hold another pair,
/// too.
struct CountedTiles {
  std::int64_t live = 0, masked = 0;
};
CountedTiles count_tiles(const Problem& p, const Symbols& n) {
  CountedTiles counted;
  for (std::int64_t j = 0; j < n.Tc; ++j) {
    std::int64_t visible = 0,
                 pairs = 0;  // of the tile's real rows and all its keys, those past the end too
    for (std::int64_t row = n.i * n.Br; row < std::min((n.i + 1) * n.Br, p.Nq); ++row) {
      for (std::int64_t key = j * n.Bc; key < (j + 1) * n.Bc; ++key) {
        ++pairs;
        visible += key < p.Nk && (!p.causal || key <= row + (p.Nk - p.Nq));
      }
    }
    counted.live += visible > 0;
    counted.masked += visible > 0 && visible < pairs;
  }
  return counted;
}

TEST_CASE("live and masked tiles are those that a count of visible pairs gives", "[gpu-claim]") {
  constexpr ClaimedTile tiles[] = {{32, 32},  {64, 32},  {32, 64},  {64, 64},
                                   {32, 128}, {64, 128}, {128, 64}, {128, 128}};
  for (const Problem& p : claim_problems()) {
    for (const ClaimedTile& tile : tiles) {
      Symbols n(p, tile);
      INFO(to_string(p) << ", tiles of " << tile.Br << " x " << tile.Bc);
      for (n.i = 0; n.i < n.Tr; ++n.i) {
        const CountedTiles counted = count_tiles(p, n);
        CHECK(n.live() == counted.live);
        CHECK(n.live() - n.whole() == counted.masked);
      }
    }
    if (!find_stage(15).supports.head_dim(p.d)) continue;
    const std::int64_t Br = 64, Bc = 4096 / p.d;
    const Symbols n(p, {.Br = Br, .Bc = Bc});
    const std::int64_t live = claims::sum(claims::live_i).value(n);
    const std::int64_t masked = claims::sum(claims::live_i - claims::whole_i).value(n);
    INFO(to_string(p));
    const simt::Ledger skipping = count_forward(find_stage(15), random_inputs(p, 1));
    CHECK(static_cast<std::int64_t>(skipping.tiles) == n.BH * live);
    CHECK(static_cast<std::int64_t>(skipping.masked_tiles) == n.BH * masked);
    for (int number : {10, 11, 12, 13, 14, 15}) {
      const simt::Ledger ledger = count_forward(find_stage(number), random_inputs(p, 1));
      CHECK(ledger.tiles == ledger.flops_cuda_cores / static_cast<std::uint64_t>(4 * Br * Bc * p.d));
    }
    if (!p.causal) CHECK(skipping == count_forward(find_stage(14), random_inputs(p, 1)));
  }
}

TEST_CASE("no stage races, reads what nobody wrote or depends on the order of threads", "[stage-claim]") {
  const Turn turn = turn_of_environment();
  for (const Stage* stage : stages()) {
    if (claim_of(*stage) == nullptr) continue;
    DYNAMIC_SECTION(folder_name(*stage)) {
      // Two tiles of keys and a part of one; a tile of rows that sees no key; and a scale with a sign.
      const std::int64_t Nk = 2 * claim_of(*stage)->symbols(problem(1, 2, 1, 65, 70, 64, true)).Bc + 6;
      Problem negative = problem(1, 1, 1, 33, 40, 64, true);
      negative.scale = -0.2f;
      std::vector<Problem> problems = {problem(1, 2, 1, 65, Nk, 64, false),
                                       problem(1, 2, 1, 65, Nk, 64, true),
                                       problem(1, 1, 1, 140, 8, 64, true), negative};
      if (blocks_stay(*stage)) problems.push_back(problem(1, 36, 36, 33, Nk, 64, true));
      // And where blocks come in clusters.
      if (stage->number == 65) {
        problems = {problem(1, 10, 10, 150, 150, 136, true), problem(1, 2, 1, 600, 140, 136, true),
                    problem(1, 2, 1, 300, 290, 200, false)};
        problems.back().scale = -0.2f;
      }
      // And what is not plain: some keys are seen by no row.
      Problem windowed = problem(1, 2, 1, 60, Nk, 64, false), capped = windowed;
      windowed.window = {9, 40};
      capped.softcap = 30;
      Problem prefixed = problem(1, 2, 1, 60, Nk, 64, true);
      prefixed.prefix = 30;
      std::vector<Problem> variants = other_variants(problem(1, 2, 1, 60, Nk, 64, true));
      variants.insert(variants.end(), {windowed, capped, prefixed});
      for (std::size_t i = 0; i < variants.size(); ++i) {
        if (turn.takes(i + static_cast<std::size_t>(stage->number)) && stage->supports.takes(variants[i]))
          problems.push_back(variants[i]);
      }
      for (const Problem& p : problems) {
        const Inputs inputs = random_inputs(p, 1);
        for (const CountedPass& pass : passes_of(*stage)) {
          simt::Options options;
          const simt::Ledger counts = pass.count(*stage, inputs, options, nullptr);
          options.check = true;
          for (const auto& [schedule, units] : {std::pair(simt::Schedule::forward, simt::Units::lazy),
                                                {simt::Schedule::reverse, simt::Units::eager},
                                                {simt::Schedule::random, simt::Units::random}}) {
            options.schedule = schedule;
            options.units = units;
            options.seed = 5;
            INFO(label(*stage) << ", " << pass.name << ", " << to_string(p));
            CHECK(pass.count(*stage, inputs, options, nullptr) == counts);
          }
        }
      }
    }
  }
}

TEST_CASE("tiles in shared memory are read and written without bank conflicts", "[gpu-claim]") {
  const Turn turn = turn_of_environment();
  for (const Stage* stage : stages()) {
    if (claim_of(*stage) == nullptr) continue;
    simt::Options options;
    options.banks = true;
    std::size_t place = static_cast<std::size_t>(stage->number);
    for (std::int64_t d : telling_head_dims(*stage)) {
      for (const CountedPass& pass : passes_of(*stage)) {
        // With the mask it may be another kernel. Several tiles, and a part of one.
        for (bool causal : {false, true}) {
          if (!turn.takes(place++)) continue;
          const Problem p = problem(1, 1, 1, 272, 272, d, causal);
          const simt::Ledger ledger = pass.count(*stage, random_inputs(p, 1), options, nullptr);
          if (stage->number == 20 || stage->number == 32) {  // what stages 21 and 33 are for
            CHECK(ledger.shared_total().wavefronts > ledger.shared_total().ideal_wavefronts);
            continue;
          }
          for (const auto& [name, traffic] : ledger.shared) {
            INFO(label(*stage) << ", " << pass.name << ", " << to_string(p) << ": " << name);
            CHECK(traffic.wavefronts == traffic.ideal_wavefronts);
          }
        }
      }
    }
  }
}

TEST_CASE("O is written in whole sectors where that is claimed, and in halves by lanes of four bytes",
          "[gpu-claim]") {
  const Turn turn = turn_of_environment();
  int whole = 0, halves = 0;
  simt::Options options;
  options.banks = true;
  for (const Stage* stage : stages()) {
    // With 16-bit numbers a lane holds two neighbours of O, 4 bytes, and 4 lanes half a sector of a row.
    if (claim_of(*stage) == nullptr || stage->forward == nullptr || stage->supports.dtype(Dtype::fp32))
      continue;
    const bool claimed = claim_of(*stage)->whole_sectors_of_O;
    (claimed ? whole : halves) += 1;
    std::size_t place = static_cast<std::size_t>(stage->number);
    for (std::int64_t d : stage->supports.head_dims) {
      for (bool causal : {false, true}) {
        if (!turn.takes(place++)) continue;
        const Problem p = problem(1, 2, 1, 146, 70, d, causal);
        const simt::Ledger ledger = count_forward(*stage, random_inputs(p, 1), options);
        const simt::GlobalTraffic& O = ledger.global.at("O");
        INFO(label(*stage) << ", " << to_string(p));
        CHECK(O.ideal_sectors >= O.written_bytes / 32);
        if (claimed && d % 16 != 0) {  // every second row begins in the middle of a sector
          CHECK(2 * O.sectors < 3 * O.ideal_sectors);
          continue;
        }
        CHECK(O.sectors == (claimed ? 1 : 2) * O.ideal_sectors);
      }
    }
  }
  CHECK(whole >= 2);   // 28 and 29
  CHECK(halves >= 8);  // 20 to 27
}

TEST_CASE("no intermediate of a right stage diverges", "[stage-claim]") {
  const Turn turn = turn_of_environment();
  for (const Stage* stage : stages()) {
    if (claim_of(*stage) == nullptr) continue;
    DYNAMIC_SECTION(folder_name(*stage)) {
      if (stage->forward == nullptr) {
        SUCCEED("it has a backward pass alone");
        continue;
      }
      std::size_t place = static_cast<std::size_t>(stage->number);
      for (const Family& family : input_families()) {
        for (bool causal : {false, true}) {
          const Problem p = problem(2, 2, 1, 70, 97, 32, causal);
          INFO(label(*stage) << ", " << to_string(p) << ", " << family.name);
          CHECK(first_divergence(*stage, for_stage(*stage, make_inputs(family, p, 1))) == "");
        }
        Problem windowed = problem(1, 2, 1, 150, 290, 32, false), capped = windowed;
        windowed.window = {40, 40};
        capped.softcap = 30;
        Problem prefixed = problem(1, 2, 1, 70, 97, 32, true);
        prefixed.prefix = 90;
        std::vector<Problem> variants = other_variants(problem(2, 2, 1, 70, 97, 32, true));
        variants.insert(variants.end(), {windowed, capped, prefixed});
        for (const Problem& p : variants) {
          // Scores far below the cap are all equal: O~ is a sum of hundreds, and its rounding with it.
          if (!stage->supports.takes(p) || (p.softcap != 0 && family.name == "very_negative")) continue;
          if (!turn.takes(place++)) continue;
          INFO(label(*stage) << ", " << to_string(p) << ", " << family.name);
          CHECK(first_divergence(*stage, for_stage(*stage, make_inputs(family, p, 1))) == "");
        }
      }
    }
  }
}

}  // namespace
