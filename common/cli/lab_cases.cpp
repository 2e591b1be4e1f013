#include "common/cli/lab_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "common/attention/closed_form.hpp"

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
    {2, 3, 3, 64, 200, false}, {1, 4, 2, 129, 64, true},
};
constexpr std::int64_t cpu_head_dims[] = {64, 32, 59, 8, 96};

Problem problem(const Stage& stage, const Shape& shape, std::size_t turn) {
  const auto& dims = stage.supports.head_dims;
  const auto& dtypes = stage.supports.dtypes;
  Problem p;
  p.batch = shape.batch;
  p.q_heads = shape.q_heads;
  p.kv_heads = shape.kv_heads;
  p.Nq = shape.Nq;
  p.Nk = shape.Nk;
  p.causal = shape.causal;
  p.scale = shape.scale;
  p.d = dims.empty() ? cpu_head_dims[turn % std::size(cpu_head_dims)] : dims[turn % dims.size()];
  p.dtype = dtypes[turn % dtypes.size()];
  return p;
}

/// `shape` with head dimension d and normal random numbers.
Job random_job(const Stage& stage, const Shape& shape, std::int64_t d, std::size_t turn = 0) {
  Problem p = problem(stage, shape, turn);
  p.d = d;
  Job job;
  job.inputs = random_inputs(p, 1 + turn);
  return job;
}

bool is_kernel(const Stage& stage) {
  return stage.backend != Backend::cpu;
}

}  // namespace

std::vector<Job> cases_of(const Family& family, const Stage& stage, std::uint64_t seed) {
  const auto place = static_cast<std::size_t>(&family - input_families().data());
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < std::size(shapes); ++i) {
    const std::size_t turn = i + place;  // another head dimension, dtype and layout in each family
    Job job;
    job.inputs = make_inputs(family, problem(stage, shapes[i], turn), seed + 1000 * place + i);
    job.layout = all_layouts[turn % std::size(all_layouts)];
    jobs.push_back(std::move(job));
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
      }
    }
    return jobs;
  }
  // Two tiles of keys and a part of one, so that what one leaves behind meets the next. With d = 64 the
  // stages that exchange O through shared memory do so twice for each tile, and stage 19 has one buffer for
  // K, in which the next tile comes. And a tile of rows that sees no key.
  const std::int64_t keys = 2 * claim_of(stage)->Bc + 6;
  for (const auto schedule : {simt::Schedule::forward, simt::Schedule::reverse, simt::Schedule::random}) {
    jobs.push_back(random_job(stage, {1, 2, 1, 65, keys, true}, 32));
    jobs.push_back(random_job(stage, {2, 1, 1, 33, keys, false}, 64, 1));
    jobs.push_back(random_job(stage, {1, 1, 1, 140, 8, true}, 32, 1));
    for (Job& job : std::span(jobs).last(3)) {
      job.check = true;
      job.schedule = schedule;
    }
  }
  return jobs;
}

std::vector<Job> far_apart_cases(const Stage& stage) {
  if (!is_kernel(stage)) return {};
  std::vector<Job> jobs = {random_job(stage, {1, 1, 1, 33, 5, false}, 32)};
  jobs.back().far_apart = true;
  return jobs;
}

std::vector<Job> counted_cases(const Stage& stage) {
  std::vector<Job> jobs;
  if (!is_kernel(stage)) {
    constexpr std::pair<Shape, int> cases[] = {{{1, 2, 1, 70, 100, true}, 1},
                                               {{2, 2, 2, 64, 33, false}, 2},
                                               {{1, 1, 1, 150, 150, true}, 3},
                                               {{1, 1, 1, 20, 700, false}, 1}};
    for (const auto& [shape, threads] : cases) {
      jobs.push_back(random_job(stage, shape, 40 + 24 * (threads % 2), jobs.size()));
      jobs.back().threads = threads;
      jobs.back().count_reads = true;
    }
    return jobs;
  }
  for (const bool causal : {false, true}) {
    // Under the mask the first tile of rows does not see all tiles of keys.
    const std::int64_t rows = std::max<std::int64_t>(128, 2 * claim_of(stage)->Br);
    jobs.push_back(random_job(stage, {1, 2, 2, rows, rows, causal}, 32, jobs.size()));
    jobs.push_back(random_job(stage, {2, 4, 2, 65, 97, causal}, 64, jobs.size()));
    jobs.push_back(random_job(stage, {1, 3, 1, 130, 31, causal}, 32, jobs.size()));
    jobs.push_back(random_job(stage, {1, 1, 1, 1, 139, causal}, 64, jobs.size()));
  }
  for (const std::int64_t d : {32, 64, 96}) {
    if (!stage.supports.head_dim(d)) continue;
    jobs.push_back(random_job(stage, {1, 1, 1, 64, 64, false}, d, jobs.size()));
    jobs.back().banks = true;
  }
  return jobs;
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
  const Claim* claim = claim_of(stage);
  const std::int64_t Br = claim != nullptr ? claim->Br : 64;
  const auto Bc = [&](const Problem& p) { return claim != nullptr ? claim->symbols(p).Bc : 60; };
  const struct {
    std::string words;
    std::function<bool(const Job&)> has;
  } traits[] = {
      {"with a causal mask", [](const Job& j) { return j.inputs.problem.causal; }},
      {"without a causal mask", [](const Job& j) { return !j.inputs.problem.causal; }},
      {"with more queries than keys under a causal mask, so that some rows see no key",
       [](const Job& j) { return j.inputs.problem.causal && j.inputs.problem.Nq > j.inputs.problem.Nk; }},
      {"with as many queries as keys",
       [](const Job& j) { return j.inputs.problem.Nq == j.inputs.problem.Nk; }},
      {"with Nq and Nk not equal", [](const Job& j) { return j.inputs.problem.Nq != j.inputs.problem.Nk; }},
      {"with grouped heads (Hkv < H)",
       [](const Job& j) { return j.inputs.problem.kv_heads < j.inputs.problem.q_heads; }},
      {"with more than one batch entry", [](const Job& j) { return j.inputs.problem.batch > 1; }},
      {"with Nk no multiple of a tile of keys",
       [&](const Job& j) { return j.inputs.problem.Nk % Bc(j.inputs.problem) != 0; }},
      {"with Nq no multiple of a tile of rows",
       [&](const Job& j) { return j.inputs.problem.Nq % Br != 0; }},
      {"with more than one tile of keys",
       [&](const Job& j) { return j.inputs.problem.Nk > Bc(j.inputs.problem); }},
      {"with more than one tile of rows", [&](const Job& j) { return j.inputs.problem.Nq > Br; }},
      {"with a negative scale", [](const Job& j) { return j.inputs.problem.scale < 0; }},
      {"with rows of O that do not lie next to each other",
       [](const Job& j) { return j.layout != Layout::contiguous; }},
      {"with d > 32", [](const Job& j) { return j.inputs.problem.d > 32; }},
      {"with d > 64", [](const Job& j) { return j.inputs.problem.d > 64; }},
      {"in fp16", [](const Job& j) { return j.inputs.problem.dtype == Dtype::fp16; }},
      {"in bf16", [](const Job& j) { return j.inputs.problem.dtype == Dtype::bf16; }},
  };
  for (const auto& trait : traits) {
    bool tells =
        std::ranges::find(right, true) != right.end() && std::ranges::find(right, false) != right.end();
    for (std::size_t i = 0; i < right.size(); ++i) tells = tells && trait.has(jobs[i]) != right[i];
    if (tells) return trait.words;
  }
  return "";
}

}  // namespace flashladder::lab
