#include "common/attention/stage.hpp"

#include <algorithm>
#include <vector>

#include "common/attention/workspace.hpp"
#include "common/error.hpp"

namespace flashladder {

std::string number_text(const Stage& stage) {
  return (stage.number < 10 ? "0" : "") + std::to_string(stage.number);
}

std::string numbers_text(std::span<const Stage* const> some) {
  std::string text;
  for (std::size_t i = 0; i < some.size();) {
    std::size_t end = i + 1;
    while (end < some.size() && some[end]->number == some[end - 1]->number + 1) ++end;
    const bool range = end - i > 2;
    text += (text.empty() ? "" : ", ") + number_text(*some[i]);
    if (range) text += "-" + number_text(*some[end - 1]);
    i = range ? end : i + 1;
  }
  return text;
}

std::string folder_name(const Stage& stage) {
  return number_text(stage) + "_" + std::string(stage.name);
}

std::string label(const Stage& stage) {
  return number_text(stage) + " " + std::string(stage.name);
}

Dtype computing_dtype(const Stage& stage, Dtype dtype) {
  return stage.supports.dtype(dtype) ? dtype : Dtype::fp32;
}

bool Support::dtype(Dtype dtype) const {
  return std::ranges::find(dtypes, dtype) != dtypes.end();
}

bool Support::head_dim(std::int64_t d) const {
  return head_dims.empty() ? d <= max_head_dim : std::ranges::find(head_dims, d) != head_dims.end();
}

namespace {

/// "a, b and c"
std::string enumerate(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += &word == &words.back() ? " and " : ", ";
    text += word;
  }
  return text;
}

}  // namespace

std::string Support::head_dims_in_words() const {
  if (head_dims.empty()) return "any up to " + std::to_string(max_head_dim);
  bool multiples = head_dims.size() > 2;
  for (std::size_t i = 0; i < head_dims.size(); ++i)
    multiples &= head_dims[i] == head_dims[0] * static_cast<std::int64_t>(i + 1);
  if (multiples)
    return "any multiple of " + std::to_string(head_dims.front()) + " up to " +
           std::to_string(head_dims.back());
  std::vector<std::string> words;
  for (std::int64_t d : head_dims) words.push_back(std::to_string(d));
  return enumerate(words);
}

std::string Support::missing(const Problem& problem) const {
  std::vector<std::string> words;
  for (const Feature& feature : all_features) {
    if (feature.asked != nullptr && feature.asked(problem) && !(features.*feature.taken))
      words.push_back(std::string("no ") + feature.name);
  }
  return enumerate(words);
}

void require_supported(const Stage& stage, const Problem& problem) {
  const Dtype dtype = computing_dtype(stage, problem.dtype);
  if (!stage.supports.dtype(dtype)) {
    std::vector<std::string> dtypes;
    for (Dtype one : stage.supports.dtypes) dtypes.emplace_back(to_string(one));
    throw UsageError("stage " + label(stage) + " does not take " + std::string(to_string(dtype)) +
                     ": it takes " + enumerate(dtypes));
  }
  if (!stage.supports.head_dim(problem.d))
    throw UsageError("stage " + label(stage) + " does not take head dimension " +
                     std::to_string(problem.d) + ": it takes " + stage.supports.head_dims_in_words());
  if (const std::string missing = stage.supports.missing(problem); !missing.empty())
    throw UsageError("stage " + label(stage) + " takes " + missing + ", and " + to_string(problem) +
                     " has that: take another stage (./ladder list says what each takes)");
}

std::string wrong_gpu(const Stage& stage, int architecture, std::string (*name)()) {
  if (stage.gpu == Gpu::any || architecture == hopper_architecture) return "";
  return "stage " + label(stage) + " needs a GPU of compute capability " + capability(hopper_architecture) +
         ", and " + name() + " has " + capability(architecture) +
         ": use --backend emulator, which runs it on the CPU";
}

namespace {

/// Throws UsageError where a tensor has strides and `stage` takes none.
template <class Call>
void require_layout(const Stage& stage, const Call& call) {
  if (stage.supports.features.strides) return;
  for (const NamedTensor& one : all_tensors) {
    if (!one.given(Call::pass, stage.saved, call.problem)) continue;
    const auto shape = one.shape(call.problem);
    const auto wanted = one.contiguous(call.problem, nullptr).stride;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (shape[i] > 1 && one.of(call).stride[i] != wanted[i])
        throw UsageError("stage " + label(stage) + " takes no strides, and " + one.name +
                         " has some: copy it to contiguous memory");
    }
  }
}

/// Throws UsageError where what `stage` needs of the forward pass is not given.
void require_saved(const Stage& stage, const Backward& backward) {
  if (stage.saved == Saved::m_and_l && (backward.m.data == nullptr || backward.l.data == nullptr))
    throw UsageError("the backward pass of stage " + label(stage) +
                     " needs m and l of the forward pass: give both, as fp32 [batch, q_heads, Nq]");
  if (stage.saved == Saved::P && backward.P.data == nullptr)
    throw UsageError("the backward pass of stage " + label(stage) +
                     " needs P of the forward pass: give it, as fp32 [batch, q_heads, Nq, Nk]");
}

/// Calls `pass`; what a GPU does not take is reported with the stage's name.
template <class Call>
void run_pass(const Stage& stage, void (*pass)(const Call&), const Call& call) {
  if (pass == nullptr)
    throw UsageError("stage " + label(stage) + " has no " + std::string(to_string(Call::pass)) +
                     " pass: take one that has (./ladder list says which)");
  require_supported(stage, call.problem);
  require_layout(stage, call);
  if constexpr (Call::pass == Pass::backward) require_saved(stage, call);
  if (stage.backend != Backend::cuda) return pass(call);
  if (const std::string why = wrong_gpu(stage, gpu_architecture(), gpu_name); !why.empty())
    throw Error(why);
  try {
    pass(call);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    throw Error("stage " + label(stage) + ": " + error.what());
  }
}

}  // namespace

void run_forward(const Stage& stage, const Forward& forward) {
  run_pass(stage, stage.forward, forward);
}

void run_backward(const Stage& stage, const Backward& backward) {
  run_pass(stage, stage.backward, backward);
}

}  // namespace flashladder
