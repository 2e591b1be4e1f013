#include "common/labs/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "common/claims/closed_form.hpp"
#include "common/claims/cpu_claim.hpp"

namespace flashladder::lab {
namespace {

/// A problem but for what depends on the stage.
struct Shape {
  std::int64_t batch, q_heads, kv_heads, Nq, Nk;
  bool causal;
  float scale = 0;
};

// Small problems in large numbers of heads: on a handful of elements the yardstick of check.hpp is a matter
// of luck.
constexpr Shape shapes[] = {
    {4, 2, 2, 17, 17, false},  {2, 4, 2, 65, 97, true},         {1, 3, 1, 113, 139, false},
    {1, 2, 2, 128, 128, true}, {2, 2, 1, 130, 31, true},        {4, 2, 2, 1, 139, false},
    {1, 2, 1, 40, 150, true},  {1, 2, 1, 70, 290, true, -0.2f}, {4, 2, 2, 65, 65, true},
    {2, 3, 3, 64, 200, false}, {1, 4, 2, 129, 64, true},        {2, 6, 2, 33, 128, false},
};

// What takes many keys, rows or heads to show, in the three families that see every key and head: the last
// rows of long sequences, ragged and of whole tiles, many rows against few keys, more than 16 heads, in one
// group and in groups of three.
constexpr Shape large_shapes[] = {
    {1, 1, 1, 32, 2174, true}, {1, 1, 1, 31, 2176, false}, {1, 1, 1, 2100, 40, false},
    {1, 17, 1, 3, 35, false},  {1, 18, 6, 5, 64, true},
};
/// More key/value heads than stage 39 wants blocks, 256: then it splits no keys.
constexpr Shape many_heads = {129, 2, 2, 3, 5, false};
/// They have all shapes too, and so has the family where a maximum over a part of the keys overflows; each
/// of the others has half of the pairs.
bool sees_every_key(const Family& family) {
  return family.name == "zero_mean" || family.name == "large_scores" || family.name == "needle";
}
constexpr std::int64_t cpu_head_dims[] = {64, 32, 59, 8, 96};

// What a stage of these variants is asked for. The first window has a left side: the mask that moves does
// so under the causal mask, which is the right side there. Caps are near the scores of random numbers,
// which one of 30 would hardly change.
constexpr Window windows[] = {{40, 9}, {9, -1}, {-1, 5}, {0, 0}, {}, {50, 70}};
constexpr float softcaps[] = {1, 2, 0.5f};

/// A head dimension, another one each turn.
std::int64_t head_dim(const Stage& stage, std::size_t turn) {
  const auto& dims = stage.supports.head_dims;
  return dims.empty() ? cpu_head_dims[turn % std::size(cpu_head_dims)] : dims[turn % dims.size()];
}

/// The dtype depends on the head dimension, but for one of them: each kernel that is needed takes the
/// compiler a while.
/// @param turn  another variant each turn, and at d = 64 another dtype
Problem problem(const Stage& stage, const Shape& shape, std::int64_t d, std::size_t turn) {
  const auto& dtypes = stage.supports.dtypes;
  Problem p;
  p.batch = shape.batch;
  p.q_heads = shape.q_heads;
  p.kv_heads = shape.kv_heads;
  p.Nq = shape.Nq;
  p.Nk = shape.Nk;
  p.causal = shape.causal;
  p.scale = shape.scale;
  p.d = d;
  p.dtype = dtypes[(d == 64 ? turn : static_cast<std::size_t>(d + 31) / 32) % dtypes.size()];
  if (stage.supports.features.window) p.window = windows[turn % std::size(windows)];
  if (stage.supports.features.softcap) p.softcap = softcaps[turn % std::size(softcaps)];
  return p;
}

/// Makes a job, whose inputs are complete, one of the pass that a lab of `stage` is of.
void give_pass(const Stage& stage, Job& job, std::uint64_t seed) {
  job.pass = graded_pass(stage);
  if (job.pass == Pass::forward) return;
  const Inputs seen = seen_inputs(job);
  job.given = backward_inputs(stage, seen, saved_forward(seen), random_output_gradient(seen.problem, seed));
}

/// `shape` with head dimension d and normal random numbers.
/// @param fewer_keys  as Job::fewer_keys
Job random_job(const Stage& stage, const Shape& shape, std::int64_t d, std::size_t seed = 0,
               int fewer_keys = 0) {
  Job job;
  job.inputs = random_inputs(problem(stage, shape, d, seed), 1 + seed);
  job.fewer_keys = fewer_keys;
  give_pass(stage, job, 1 + seed);
  return job;
}

bool is_kernel(const Stage& stage) {
  return stage.backend != Backend::cpu;
}

/// What a block works on at head dimension d.
ClaimedTile tile_for(const Stage& stage, std::int64_t d) {
  Problem p;
  p.d = d;
  return tile_of(stage, p);
}

/// Whether `stage` takes the problem and the layout of a job.
bool takes(const Stage& stage, const Job& job) {
  return stage.supports.takes(job.inputs.problem) &&
         (job.layout == Layout::contiguous || stage.supports.features.strides);
}
/// Those of `jobs` that `stage` takes.
std::vector<Job> taken(const Stage& stage, std::vector<Job> jobs) {
  std::erase_if(jobs, [&](const Job& job) { return !takes(stage, job); });
  return jobs;
}

/// A case whose inputs are still to be made.
struct Planned {
  Job job;             ///< Of its inputs it has the problem.
  std::uint64_t seed;  ///< Added to that of the grading.
};

std::vector<Planned> plan_of(const Family& family, const Stage& stage) {
  const auto place = static_cast<std::size_t>(&family - input_families().data());
  std::vector<Planned> all;
  const auto plan = [&](const Problem& problem, Layout layout, std::size_t number) {
    Planned& one = all.emplace_back(Planned{{}, 1000 * place + number});
    one.job.inputs.problem = problem;
    one.job.layout = layout;
  };
  for (std::size_t i = 0; i < std::size(shapes); ++i) {
    const std::size_t turn = i + place;  // another head dimension and layout in each family
    if (!sees_every_key(family) && (i / 2 + place) % 2 == 0) continue;
    const std::size_t layout = turn + turn / 3;  // another one with each head dimension
    plan(problem(stage, shapes[i], head_dim(stage, turn), turn / 3),
         all_layouts[layout % std::size(all_layouts)], i);
  }
  for (std::size_t i = 0; sees_every_key(family) && i < std::size(large_shapes); ++i) {
    plan(problem(stage, large_shapes[i], 32, i), Layout::contiguous, std::size(shapes) + i);
  }
  if (sees_every_key(family) && graded_pass(stage) == Pass::backward)
    plan(problem(stage, many_heads, 32, 0), Layout::contiguous,
         std::size(shapes) + std::size(large_shapes));
  std::erase_if(all, [&](const Planned& one) { return !takes(stage, one.job); });
  return all;
}

}  // namespace

Pass graded_pass(const Stage& stage) {
  return stage.has(Pass::forward) ? Pass::forward : Pass::backward;
}

Job job_on(const Stage& stage, const Inputs& inputs, std::uint64_t seed) {
  Job job;
  job.inputs = inputs;
  give_pass(stage, job, seed);
  return job;
}

Inputs seen_inputs(const Job& job) {
  const Problem& p = job.inputs.problem;
  Inputs result = job.inputs;
  if (job.fewer_keys == 0) return result;
  result.problem.Nk -= job.fewer_keys;
  for (auto member : {&Inputs::K, &Inputs::V}) {
    std::vector<float>& kept = result.*member;
    kept.clear();
    for (std::int64_t head = 0; head < p.batch * p.kv_heads; ++head) {
      const auto begin = (job.inputs.*member).begin() + head * p.Nk * p.d;
      kept.insert(kept.end(), begin, begin + result.problem.Nk * p.d);
    }
  }
  return result;
}

std::vector<Job> cases_of(const Family& family, const Stage& stage, std::uint64_t seed) {
  std::vector<Job> jobs;
  for (Planned& one : plan_of(family, stage)) {
    one.job.inputs = make_inputs(family, one.job.inputs.problem, seed + one.seed);
    give_pass(stage, one.job, seed + one.seed);
    jobs.push_back(std::move(one.job));
  }
  return jobs;
}

std::vector<Job> clean_cases(const Stage& stage) {
  std::vector<Job> jobs;
  if (!is_kernel(stage)) {
    for (const Shape& shape : {Shape{1, 4, 2, 200, 130, true}, Shape{2, 1, 1, 65, 300, false}}) {
      for (const int threads : {1, 2, 5}) {
        jobs.push_back(random_job(stage, shape, 40));
        jobs.back().threads = threads;
        jobs.back().watched = true;
      }
    }
    // All scores far below 0: where m starts at 0, every e^(S - m) is 0.
    jobs.push_back(random_job(stage, {1, 2, 1, 20, 130, true}, 40));
    for (float& q : jobs.back().inputs.Q) q += 6;
    for (float& k : jobs.back().inputs.K) k -= 6;
    return taken(stage, std::move(jobs));
  }
  // Two tiles of keys and a part of one, so that what one leaves behind meets the next; in one tile of rows
  // with no other, whose barriers would come between. With d = 64 the stages that exchange O through shared
  // memory do so twice for each tile, and stage 29 has one buffer for K, in which the next tile comes. And
  // a tile of rows that sees no key.
  const std::int64_t keys = 2 * claim_of(stage)->tile.Bc + 6;
  const std::int64_t most_d = stage.supports.head_dims.back();
  const std::int64_t rows = 2 * claim_of(stage)->tile.Br + 6;
  const bool of_rows = graded_pass(stage) == Pass::backward;  // there it is tiles of rows that follow
  for (const auto& [schedule, units] : {std::pair(simt::Schedule::forward, simt::Units::lazy),
                                        {simt::Schedule::reverse, simt::Units::eager},
                                        {simt::Schedule::random, simt::Units::random}}) {
    jobs.push_back(random_job(stage, {1, 2, 1, of_rows ? rows : 65, of_rows ? 65 : keys, true}, 32));
    jobs.push_back(random_job(stage, {2, 1, 1, of_rows ? rows : 30, of_rows ? 30 : keys, false}, 64, 1));
    jobs.push_back(random_job(stage, {1, 1, 1, 140, 8, true}, 32, 1));
    std::size_t added = 3;
    const auto add = [&](std::int64_t d) {
      jobs.push_back(random_job(stage, {1, 1, 1, of_rows ? rows : 30, of_rows ? 30 : keys, true}, d));
      ++added;
    };
    // Tiles of K that take turns in a buffer, and warps that share their keys, have other barriers.
    for (const std::int64_t d : {std::int64_t{96}, most_d}) {
      const ClaimedTile tile = tile_for(stage, d), usual = tile_for(stage, 64);
      if (stage.supports.head_dim(d) && (tile.num_buffers < usual.num_buffers || tile.share > usual.share))
        add(d);
    }
    if (!of_rows) {  // tiles of keys that the first tile of rows does not see; and a sign that goes into Q
      const ClaimedTile tile = tile_for(stage, 64);
      jobs.push_back(random_job(stage, {1, 1, 1, tile.Br + tile.Bc, tile.Br + tile.Bc, true, -0.2f}, 64));
      ++added;
    }
    if (of_rows) {  // blocks of several tiles of keys add to the same rows, and one may take several tiles
      jobs.push_back(random_job(stage, {2, 1, 1, 30, keys, true}, 32, 2));
      ++added;
    }
    for (Job& job : std::span(jobs).last(added)) {
      job.check = true;
      job.schedule = schedule;
      job.units = units;
    }
  }
  return taken(stage, std::move(jobs));
}

std::vector<Job> far_apart_cases(const Stage& stage) {
  if (!is_kernel(stage)) return {};
  std::vector<Job> jobs = {random_job(stage, {1, 1, 1, 33, 5, false}, 32)};
  jobs.back().far_apart = true;
  return stage.supports.features.strides ? jobs : std::vector<Job>();
}

std::vector<Job> moved_mask_cases(const Stage& stage) {
  if (!is_kernel(stage)) return {};
  const std::int64_t keys = 2 * claim_of(stage)->tile.Bc + 6;
  std::vector<Job> jobs = {random_job(stage, {2, 2, 1, keys, keys, true}, 32, 0, 11)};
  return taken(stage, std::move(jobs));
}

std::vector<Job> counted_cases(const Stage& stage) {
  std::vector<Job> jobs;
  if (!is_kernel(stage)) {
    // With several threads: one head of many tiles, and many heads of one tile.
    constexpr std::pair<Shape, int> cases[] = {
        {{1, 2, 1, 70, 100, true}, 1},  {{2, 2, 2, 64, 33, false}, 2}, {{1, 1, 1, 150, 150, true}, 3},
        {{1, 1, 1, 20, 700, false}, 1}, {{1, 1, 1, 450, 40, true}, 3}, {{2, 4, 2, 64, 64, false}, 5}};
    for (const auto& [shape, threads] : cases) {
      jobs.push_back(random_job(stage, shape, 40 + 24 * (threads % 2), jobs.size()));
      jobs.back().threads = threads;
      jobs.back().count_reads = true;
      jobs.back().watched = true;
    }
    return taken(stage, std::move(jobs));
  }
  for (const bool causal : {false, true}) {
    // Under the mask the first tile of rows does not see all tiles of keys.
    const std::int64_t all_keys = graded_pass(stage) == Pass::forward ? 2 * tile_for(stage, 32).Bc : 0;
    const std::int64_t rows = std::max({std::int64_t{128}, 2 * claim_of(stage)->tile.Br, all_keys});
    jobs.push_back(random_job(stage, {1, 2, 2, rows, rows, causal}, 32, jobs.size()));
    jobs.push_back(random_job(stage, {2, 4, 2, 65, 97, causal}, 64, jobs.size()));
    jobs.push_back(random_job(stage, {1, 3, 1, 130, 31, causal}, 32, jobs.size()));
    jobs.push_back(random_job(stage, {1, 1, 1, 1, 139, causal, -0.2f}, 64, jobs.size()));
    if (graded_pass(stage) == Pass::backward) {
      const std::int64_t keys = 4 * claim_of(stage)->tile.Bc + 6;
      jobs.push_back(random_job(stage, {1, 2, 1, 20, keys, causal}, 32, jobs.size()));
    }
  }
  for (Job& job : jobs) job.watched = true;
  for (const std::int64_t d : {32, 64, 96}) {
    if (!stage.supports.head_dim(d)) continue;
    // Two tiles of rows, or of keys: a block that does another's work is the busiest.
    const ClaimedTile tile = claim_of(stage)->tile;
    const Shape shape = graded_pass(stage) == Pass::forward ? Shape{1, 1, 1, 2 * tile.Br, 64, false}
                                                            : Shape{1, 1, 1, 64, 2 * tile.Bc, false};
    jobs.push_back(random_job(stage, shape, d, jobs.size()));
    jobs.back().banks = true;
  }
  // Where warpgroups have another tile for each head dimension, that of each counts.
  for (const std::int64_t d : {128, 192, 256}) {
    const ClaimedTile tile = tile_for(stage, d);
    if (!stage.supports.head_dim(d) || tile.warpgroups == 0 || tile.Bc == tile_for(stage, 64).Bc) continue;
    jobs.push_back(random_job(stage, {1, 1, 1, 130, 200, false}, d, jobs.size()));
  }
  return taken(stage, std::move(jobs));
}

std::vector<Problem> problems_of_cases(const Stage& stage) {
  std::vector<Problem> problems;
  for (const Family& family : input_families()) {
    for (const Planned& one : plan_of(family, stage)) problems.push_back(one.job.inputs.problem);
  }
  for (const auto& jobs :
       {clean_cases(stage), far_apart_cases(stage), moved_mask_cases(stage), counted_cases(stage)}) {
    for (const Job& job : jobs) problems.push_back(job.inputs.problem);
  }
  return problems;
}

ClaimedTile tile_of(const Stage& stage, const Problem& problem) {
  if (const CpuClaim* claim = cpu_claim_of(stage)) return claim->symbols(problem, 1);
  return claim_of(stage)->symbols(problem);
}

std::string words_of(const Job& job) {
  const Problem& p = job.inputs.problem;
  std::string text = to_string(p);
  if (p.scale != 0) text += fmt::format(", scale {}", p.scale);
  if (job.layout != Layout::contiguous) text += fmt::format(", {}", to_string(job.layout));
  if (job.threads > 1) text += fmt::format(", {} threads", job.threads);
  return text;
}

std::string common_trait(const Stage& stage, const std::vector<Job>& jobs, const std::vector<bool>& right) {
  const auto Br = [&](const Problem& p) { return tile_of(stage, p).Br; };
  const auto Bc = [&](const Problem& p) { return tile_of(stage, p).Bc; };
  const struct {
    std::string words;
    std::function<bool(const Problem&, Layout)> has;
  } traits[] = {
      {"with a causal mask", [](const Problem& p, Layout) { return p.causal; }},
      {"without a causal mask", [](const Problem& p, Layout) { return !p.causal; }},
      {"with more queries than keys under a causal mask, so that some rows see no key",
       [](const Problem& p, Layout) { return p.causal && p.Nq > p.Nk; }},
      {"with a causal mask and Nq and Nk not equal: the mask's corner is the one at the bottom right",
       [](const Problem& p, Layout) { return p.causal && p.Nq != p.Nk; }},
      {"with as many queries as keys", [](const Problem& p, Layout) { return p.Nq == p.Nk; }},
      {"with Nq and Nk not equal: rows of Q and O end at n.Nq, those of K and V at n.Nk",
       [](const Problem& p, Layout) { return p.Nq != p.Nk; }},
      {"with more queries than keys", [](const Problem& p, Layout) { return p.Nq > p.Nk; }},
      {"with more keys than queries", [](const Problem& p, Layout) { return p.Nq < p.Nk; }},
      {"with 2,048 keys or more", [](const Problem& p, Layout) { return p.Nk >= 2048; }},
      {"with 2,048 rows or more", [](const Problem& p, Layout) { return p.Nq >= 2048; }},
      {"with more than 16 heads", [](const Problem& p, Layout) { return p.q_heads > 16; }},
      {"with groups of three heads and more than one key/value head",
       [](const Problem& p, Layout) { return p.q_heads == 3 * p.kv_heads && p.kv_heads > 1; }},
      {"with grouped heads (Hkv < H)", [](const Problem& p, Layout) { return p.kv_heads < p.q_heads; }},
      {"with grouped heads (Hkv < H) whose rows are not side by side (rows_first): the row of Q and that "
       "of K "
       "and V then have strides of their own",
       [](const Problem& p, Layout layout) {
         return layout == Layout::rows_first && p.kv_heads < p.q_heads;
       }},
      {"with more than one batch entry", [](const Problem& p, Layout) { return p.batch > 1; }},
      {"with Nk no multiple of a tile of keys",
       [&](const Problem& p, Layout) { return p.Nk % Bc(p) != 0; }},
      {"with Nk a multiple of a tile of keys, so that the last tile is whole",
       [&](const Problem& p, Layout) { return p.Nk % Bc(p) == 0; }},
      {"whose tiles are masked: with a causal mask, or with Nk no multiple of a tile of keys",
       [&](const Problem& p, Layout) { return p.causal || p.Nk % Bc(p) != 0; }},
      {"with Nq no multiple of a tile of rows",
       [&](const Problem& p, Layout) { return p.Nq % Br(p) != 0; }},
      {"with more than one tile of keys", [&](const Problem& p, Layout) { return p.Nk > Bc(p); }},
      {"with more than one tile of rows", [&](const Problem& p, Layout) { return p.Nq > Br(p); }},
      {"with a negative scale", [](const Problem& p, Layout) { return p.scale < 0; }},
      {"with rows that do not lie next to each other: each tensor has strides of its own, n.Q.row and so "
       "on",
       [](const Problem&, Layout layout) { return layout != Layout::contiguous; }},
      {"with a window that hides keys before a row's own",
       [](const Problem& p, Layout) { return p.window.left >= 0; }},
      {"with a window that hides keys behind a row's own",
       [](const Problem& p, Layout) { return p.window.right >= 0 && !p.causal; }},
      {"with a side of the window that hides no key, -1",
       [](const Problem& p, Layout) { return p.window.left < 0 || (p.window.right < 0 && !p.causal); }},
      {"with d > 32", [](const Problem& p, Layout) { return p.d > 32; }},
      {"with d > 64", [](const Problem& p, Layout) { return p.d > 64; }},
      {"in fp16", [](const Problem& p, Layout) { return p.dtype == Dtype::fp16; }},
      {"in bf16", [](const Problem& p, Layout) { return p.dtype == Dtype::bf16; }},
  };
  const auto wrong = std::ranges::count(right, false);
  // The trait that the fewest others have, at most as many as are wrong; where only the wrong ones have it,
  // the first in the table.
  std::string words;
  std::ptrdiff_t fewest = wrong + 1;
  for (const auto& trait : traits) {
    std::ptrdiff_t others = 0;
    bool all = wrong > 0;
    for (std::size_t i = 0; i < right.size(); ++i) {
      const bool has = trait.has(jobs[i].inputs.problem, jobs[i].layout);
      others += has && right[i];
      all = all && (has || right[i]);
    }
    if (!all || std::ssize(right) - wrong == others) continue;  // the right ones have it too
    if (others < fewest) words = (others == 0 ? "those " : "all of them ") + trait.words;
    fewest = std::min(fewest, others);
  }
  return words;
}

}  // namespace flashladder::lab
