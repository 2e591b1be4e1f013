#include "common/cli/climb_check.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace flashladder {

std::string one_line(std::string text) {
  for (std::size_t at; (at = text.find('\n')) != std::string::npos;) {
    const std::size_t next = std::min(text.find_first_not_of(" \n", at), text.size());
    text.replace(at, next - at, next < text.size() ? "; " : "");
  }
  return text;
}

Dtype given_dtype(const Stage& stage, Dtype dtype) {
  if (stage.supports.dtype(computing_dtype(stage, dtype))) return dtype;
  return stage.supports.dtype(Dtype::bf16) ? Dtype::bf16 : stage.supports.dtypes.front();
}

Checker::Checker(const Inputs& inputs, Pass pass, Progress& progress, bool sampled)
    : inputs_(inputs), pass_(pass), progress_(progress) {
  if (pass_ == Pass::forward) {
    if (sampled) sample_ = sample_of(inputs);
    return;
  }
  dO_ = random_output_gradient(inputs.problem, 1);
  saved_ = saved_forward(inputs);
}

std::int64_t Checker::judged_rows() const {
  std::int64_t rows = 0;
  for (const Chunk& chunk : sample_) rows += chunk.inputs.problem.Nq;
  return rows;
}

const Checker::Checked& Checker::check(const Stage& stage) {
  const auto [at, is_new] = checked_.try_emplace(stage.number);
  Checked& checked = at->second;
  if (!is_new) return checked;
  const Right& right = right_for(stage);
  const auto run = [&] {
    checked.verdict =
        pass_ == Pass::backward ? run_and_check_backward(stage, inputs_, saved_, dO_, Layout::contiguous,
                                                         right.gradients, &checked.gradients)
        : sample_.empty()
            ? run_and_check(stage, inputs_, Layout::contiguous, right.forward, &checked.result)
            : run_and_check_sample(stage, inputs_, sample_, right.sample, &checked.result);
  };
  const double seconds = sample_.empty() ? 0 : stage_seconds(stage, inputs_.problem);
  const std::string about =
      seconds > 5 ? fmt::format(", about {} for each run", duration_text(seconds)) : "";
  try {
    if (stage.backend == Backend::emulator) {
      progress_.step(name(stage) + ": checking and counting on the emulator" + about + " ...");
      checked.ledger = count_launches(run);
    } else {
      progress_.step(name(stage) + ": checking" + about + " ...");
      run();
    }
  } catch (const OutOfMemory& error) {
    checked.verdict.why = error.what();
    checked.out_of_memory = true;
    checked.extra_bytes = error.peak;
  } catch (const std::exception& error) {
    checked.verdict.why = one_line(error.what());
  }
  return checked;
}

const Stage* Checker::before(const Stage& stage, Pass pass) {
  if (pass == Pass::backward) return backward_before(stage);
  return stage.before == stage.number ? nullptr : &on_backend(find_stage(stage.before), stage.backend);
}

Verdict Checker::against(const Stage& stage, const Stage& other) {
  const Checked &mine = check(stage), &its = check(other);
  const Right &right = right_for(stage), &its_right = right_for(other);
  return pass_ == Pass::backward
             ? check_backward_against(mine.gradients, right.gradients, its.gradients, its_right.gradients)
             : check_against(mine.result, right.forward, its.result, its_right.forward);
}

const Checker::Right& Checker::right_for(const Stage& stage) {
  const Dtype dtype = computing_dtype(stage, inputs_.problem.dtype);
  auto& slot = right_[dtype];
  if (!slot) {
    slot = std::make_unique<Right>();
    if (!sample_.empty()) {
      std::vector<Expected> expected;
      for (const Chunk& chunk : sample_) {
        progress_.repetition(fmt::format("the fp64 oracle of a sample of rows: part {} of {} ...",
                                         expected.size() + 1, sample_.size()));
        expected.push_back(expect_forward(chunk.inputs, dtype));
      }
      slot->sample = expect_sample(inputs_.problem, sample_, std::move(expected));
      slot->forward = slot->sample.all;
      return *slot;
    }
    progress_.step(fmt::format("computing the fp64 oracle for {} ...", to_string(inputs_.problem)));
    if (pass_ == Pass::backward) {
      slot->gradients = expect_backward(inputs_, saved_, dO_, dtype);
    } else {
      slot->forward = expect_forward(inputs_, dtype);
    }
  }
  return *slot;
}

std::string Checker::name(const Stage& stage) const {
  return label(stage) + (inputs_.problem.causal ? ", causal" : "");
}

}  // namespace flashladder
