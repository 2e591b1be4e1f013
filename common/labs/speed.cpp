#include "common/labs/speed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/attention/backend.hpp"
#include "common/check/inputs.hpp"
#include "common/error.hpp"
#include "common/labs/cases.hpp"

namespace flashladder::lab {
namespace {

constexpr int turns = 3;                   // of the student's program and of the reference's
constexpr std::int64_t rows_checked = 16;  // of the last head: all of them would take the oracle minutes

/// The stage that makes O and L for a backward pass that is timed, on the CPU.
constexpr int fast_forward = 2;

Gradients<float> as_float(const Gradients<double>& x) {
  return {{x.dQ.begin(), x.dQ.end()}, {x.dK.begin(), x.dK.end()}, {x.dV.begin(), x.dV.end()}};
}

/// The last `count` values.
std::vector<float> last(const std::vector<float>& values, std::int64_t count) {
  return {values.end() - std::min(count, std::ssize(values)), values.end()};
}

/// What is wrong with dQ of the last rows of a timed job, which are under its mask as in it; "" where
/// nothing is.
std::string wrong_last_rows_of_dQ(const Job& job, const Report& report) {
  const Problem& p = job.inputs.problem;
  const std::int64_t rows = std::min(rows_checked, p.Nq);
  Inputs part{p, last(job.inputs.Q, rows * p.d), last(job.inputs.K, p.Nk * p.d),
              last(job.inputs.V, p.Nk * p.d)};
  part.problem.batch = part.problem.q_heads = part.problem.kv_heads = 1;
  part.problem.Nq = rows;
  const Result<float> saved{last(job.given.forward.O, rows * p.d), last(job.given.forward.L, rows)};
  const ExpectedGradients expected =
      expect_backward_part(part, saved, last(job.given.dO, rows * p.d), p.dtype);
  Gradients<float> got = as_float(expected.oracle);  // of dK and dV these rows have a part alone
  got.dQ = last(report.gradients.dQ, rows * p.d);
  return check_backward(got, expected).why;
}

/// What is wrong with the last rows of a timed job; "" where nothing is.
std::string wrong_rows(const Job& job, const Report& report) {
  const Problem& p = job.inputs.problem;
  if (job.pass == Pass::backward) {
    const std::string wrong = wrong_last_rows_of_dQ(job, report);
    return wrong.empty() ? "" : "of the last rows of dQ, " + wrong;
  }
  Job part;
  part.inputs.problem = p;
  part.inputs.problem.batch = part.inputs.problem.q_heads = part.inputs.problem.kv_heads = 1;
  part.inputs.problem.Nq = std::min(rows_checked, p.Nq);
  const std::int64_t values = part.inputs.problem.Nq * p.d;
  part.inputs.Q = last(job.inputs.Q, values);
  part.inputs.K = last(job.inputs.K, p.Nk * p.d);
  part.inputs.V = last(job.inputs.V, p.Nk * p.d);
  Report seen;
  seen.result = {last(report.result.O, values), last(report.result.L, part.inputs.problem.Nq)};
  const std::string wrong = check_result(part, seen).why;
  return wrong.empty() ? "" : "of its last rows, " + wrong;
}

/// What is wrong with the answer to job `i` of those that were run together; "" where nothing is.
std::string wrong_with(const std::vector<Job>& jobs, const Answers& answers, std::size_t i) {
  const auto wrong = [&]() -> std::string {
    if (i >= answers.reports.size()) return answers.ended;
    const Report& report = answers.reports[i];
    if (report.failure != Failure::none) return report.what;
    if (!report.defect.empty()) return report.defect;
    if (!jobs[i].timed) return check_result(jobs[i], report).why;
    const bool has_times = !report.ms.empty() && std::ranges::all_of(report.ms, [](double ms) {
      return std::isfinite(ms) && ms > 0;
    });
    return has_times ? wrong_rows(jobs[i], report) : "it sends no times";
  }();
  return wrong.empty() ? "" : fmt::format("{}: {}", words_of(jobs[i]), wrong);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Why the speed is not even tried; "" where it is.
std::string not_tried(const Lab& lab, const Grade& grade) {
  if (lab.stage->backend == Backend::cpu) return "this lab is one for the CPU";
  const Part& correct = grade.part("correct");
  if (!grade.refused.empty() || !grade.compile_error.empty() || correct.points() < correct.most())
    return "not all outputs are right";
  const std::string why = unavailable(*lab.stage, Backend::cuda);
  // What comes after the last colon is what to do without a GPU, which is not asked here.
  return why.empty() ? "" : "it takes a GPU, and " + why.substr(0, why.rfind(": "));
}

Speed try_speed(const Lab& lab, const std::string& text, std::uint64_t seed, const Limits& limits) {
  const TemporaryFolder folders[2];
  const Program student(*lab.stage, lab.file, text, folders[0].path(), limits, Backend::cuda);
  if (student.compiled().log.find("Cannot find valid GPU") != std::string::npos)
    return {.missing = "nvcc does not find the GPU that it is to compile for"};
  if (!student.compiled().ok) return {.missing = "nvcc does not compile it: " + student.compiled().error};
  const Program reference(*lab.stage, lab.file, lab.source.reference, folders[1].path(), limits,
                          Backend::cuda);
  if (!reference.compiled().ok)
    return {.missing = "nvcc does not compile the reference: " + reference.compiled().error};
  return compare_speed(
      cases_of(input_families().front(), *lab.stage, seed), timed_case(*lab.stage),
      [&](const std::vector<Job>& jobs) { return student.run(jobs); },
      [&](const std::vector<Job>& jobs) { return reference.run(jobs); });
}

}  // namespace

Job timed_case(const Stage& stage) {
  Problem p;
  p.q_heads = p.kv_heads = 32;
  p.Nq = p.Nk = 2048;
  p.causal = true;
  p.dtype = stage.supports.dtypes.back();  // bf16 on tensor cores
  if (stage.supports.features.window) p.window.left = 256;
  if (stage.supports.features.softcap) p.softcap = 30;
  Job job;
  job.inputs = random_inputs(p, 1);
  job.timed = true;
  job.pass = graded_pass(stage);
  if (job.pass == Pass::backward) {
    ForwardRun run(find_stage(fast_forward), job.inputs);
    Workspace workspace;
    run.run(workspace);
    job.given = backward_inputs(stage, job.inputs, run.result(), random_output_gradient(p, 1));
  }
  return job;
}

Speed compare_speed(const std::vector<Job>& checked, const Job& timed, const Runner& student,
                    const Runner& reference) {
  const Answers answers = student(checked);
  for (std::size_t i = 0; i < checked.size(); ++i) {
    if (std::string wrong = wrong_with(checked, answers, i); !wrong.empty())
      return {.missing = "on the GPU it is wrong: " + wrong};
  }
  // In turns, so that a GPU that gets warm, or is used by others too, is the same for both.
  std::vector<double> ms, reference_ms;
  for (int turn = 0; turn < turns; ++turn) {
    const std::vector<Job> jobs = {timed};
    for (const bool is_student : {true, false}) {
      const Answers answer = (is_student ? student : reference)(jobs);
      if (std::string wrong = wrong_with(jobs, answer, 0); !wrong.empty())
        return {.missing =
                    fmt::format("on the GPU {} is wrong: {}", is_student ? "it" : "the reference", wrong)};
      std::ranges::copy(answer.reports[0].ms, std::back_inserter(is_student ? ms : reference_ms));
    }
  }
  return {.shape = words_of(timed), .ms = median(ms), .reference_ms = median(reference_ms)};
}

Speed speed_of(const Lab& lab, const std::string& text, const Grade& grade, const Limits& limits) {
  Speed speed;
  speed.missing = not_tried(lab, grade);
  if (!speed.missing.empty()) return speed;
  try {
    speed = try_speed(lab, text, grade.seed, limits);
  } catch (const Error& error) {  // no nvcc any more: no reason to have no grade
    speed.missing = error.what();
  }
  speed.gpu = gpu_name();
  return speed;
}

std::string words_of(const Speed& speed) {
  if (!speed.missing.empty()) return "Speed is not shown: " + speed.missing;
  return fmt::format(
      "Speed on this GPU ({}): {:.2f} of the reference's, {:.3f} ms to its {:.3f} ms, {}; no points depend "
      "on it",
      speed.gpu, speed.ratio(), speed.ms, speed.reference_ms, speed.shape);
}

}  // namespace flashladder::lab
