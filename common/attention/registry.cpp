#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <string>

#include "common/attention/stage.hpp"
#include "common/error.hpp"

namespace flashladder {

namespace {

/// `stage` as compiled for a GPU or for the emulator; nullptr where it is not.
const Stage* twin_of(const Stage& stage, Backend backend) {
  for (const Stage* twin : backend == Backend::cuda ? cuda_stages() : stages()) {
    if (twin->number == stage.number) return twin;
  }
  return nullptr;
}

}  // namespace

std::string unavailable(const Stage& stage, Backend backend) {
  if (std::string why = unavailable(backend); !why.empty() || backend != Backend::cuda) return why;
  if (std::string why = wrong_gpu(stage, gpu_architecture(), gpu_name); !why.empty()) return why;
  if (stage.gpu == Gpu::any || twin_of(stage, backend) != nullptr) return "";
  return "stage " + label(stage) + " needs code for compute capability " + capability(hopper_architecture) +
         ", and this build has none: build for it too (CMAKE_CUDA_ARCHITECTURES), or use --backend "
         "emulator";
}

std::vector<const Stage*> gpu_stages() {
  std::vector<const Stage*> found;
  for (const Stage* stage : cuda_stages()) {
    if (unavailable(*stage, Backend::cuda).empty()) found.push_back(stage);
  }
  return found;
}

const Stage& on_backend(const Stage& stage, Backend backend) {
  if (stage.backend == backend || stage.backend == Backend::cpu) return stage;
  if (const std::string why = unavailable(stage, backend); !why.empty()) throw Error(why);
  if (const Stage* twin = twin_of(stage, backend)) return *twin;
  throw Error("stage " + label(stage) + " is not compiled for " + std::string(to_string(backend)));
}

namespace {

/// The stages whose name has `wanted` in it, three letters or more in any spelling: Tensor-Cores, tensor.
std::vector<const Stage*> with_name_like(std::string_view wanted) {
  std::string spelt;
  for (const char c : wanted) {
    spelt += c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  std::vector<const Stage*> found;
  for (const Stage* stage : stages()) {
    if (spelt.size() >= 3 && stage->name.find(spelt) != stage->name.npos) found.push_back(stage);
  }
  return found;
}

/// "stage 7 does not exist: the stages are 00-02, 10; ./ladder list shows their names"
[[noreturn]] void no_such_stage(std::string_view wanted) {
  const bool number = !wanted.empty() && wanted.find_first_not_of("0123456789") == wanted.npos;
  std::string text =
      "stage " + (number ? std::string(wanted) : "'" + std::string(wanted) + "'") + " does not exist: ";
  if (const auto likely = with_name_like(wanted); !likely.empty()) {
    for (const Stage* stage : likely) text += (stage == likely.front() ? "is it " : " or ") + label(*stage);
    throw UsageError(text + "?");
  }
  throw UsageError(text + "the stages are " + numbers_text(stages()) + "; ./ladder list shows their names");
}

/// The stage of this number, name or folder: "13", "fa2_sequence_parallel",
/// "stages/13_fa2_sequence_parallel/".
const Stage& stage_called(std::string_view text) {
  std::string_view wanted = text;
  while (wanted.ends_with('/')) wanted.remove_suffix(1);
  wanted.remove_prefix(std::min(wanted.rfind('/') + 1, wanted.size()));  // npos + 1 is 0
  int number = -1;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), number);
  const bool is_number = error == std::errc() && end == wanted.data() + wanted.size();
  for (const Stage* stage : stages()) {
    if (is_number ? stage->number == number
                  : wanted == stage->name || wanted == folder_name(*stage) || wanted == label(*stage))
      return *stage;
  }
  no_such_stage(text);
}

}  // namespace

const Stage& find_stage(int number) {
  for (const Stage* stage : stages()) {
    if (stage->number == number) return *stage;
  }
  no_such_stage(std::to_string(number));
}

const Stage* backward_before(const Stage& stage) {
  if (stage.before_backward >= 0) return &on_backend(find_stage(stage.before_backward), stage.backend);
  for (const Stage* one = &stage; one->before != one->number;) {
    one = &on_backend(find_stage(one->before), stage.backend);
    if (one->backward != nullptr) return one;
  }
  return nullptr;
}

std::vector<const Stage*> select_stages(std::string_view selection) {
  std::set<int> chosen;
  for (std::string_view rest = selection;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    // Both ends of a range must exist: a range that silently lacks a stage would pass for a complete climb.
    if (dash == 0 || dash + 1 == part.size() || (dash != part.npos && !with_name_like(part).empty()))
      no_such_stage(part);  // an end is missing, or it is a name
    const int first = stage_called(part.substr(0, dash)).number;
    const int last = dash == part.npos ? first : stage_called(part.substr(dash + 1)).number;
    if (last < first)
      throw UsageError("'" + std::string(part) + "' runs backwards: give " +
                       std::string(part.substr(dash + 1)) + "-" + std::string(part.substr(0, dash)));
    for (const Stage* stage : stages()) {
      if (first <= stage->number && stage->number <= last) chosen.insert(stage->number);
    }
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::vector<const Stage*> result;
  result.reserve(chosen.size());
  for (int number : chosen) result.push_back(&find_stage(number));
  return result;
}

}  // namespace flashladder
