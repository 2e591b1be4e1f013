#include "common/cli/list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/attention/stage.hpp"
#include "common/cli/input.hpp"
#include "common/io/terminal.hpp"

namespace flashladder {
namespace {

std::string passes(const Stage& stage) {
  if (stage.forward == nullptr) return "backward";
  return stage.backward != nullptr ? "forward, backward" : "forward";
}

std::string dtypes(const Stage& stage) {
  std::string text;
  for (Dtype dtype : stage.supports.dtypes)
    text += (text.empty() ? "" : ", ") + std::string(to_string(dtype));
  return text;
}

/// "; no causal mask; no strides; of all GPUs Hopper": what a stage does not take and others do, or the
/// reverse; "" where it takes what others do.
std::string features(const Stage& stage) {
  std::string text;
  for (const Feature& feature : all_features) {
    const bool taken = stage.supports.features.*feature.taken;
    if (taken != Features().*feature.taken) text += fmt::format("; {}{}", taken ? "" : "no ", feature.name);
  }
  return text + (stage.gpu == Gpu::hopper ? "; of all GPUs Hopper" : "");
}

/// What the stages of the track with this number are about. A track is the first digit; that of forward
/// passes on Hopper goes on to 51, and again with 65, that of backward passes there to 64, and again from
/// 66 to 68, and that of variants to 83.
std::string_view track(int number) {
  constexpr std::pair<int, std::string_view> tracks[] = {{0, "on a CPU"},
                                                         {10, "forward on CUDA cores"},
                                                         {20, "forward on tensor cores"},
                                                         {30, "backward"},
                                                         {40, "forward on Hopper"},
                                                         {52, "backward on Hopper"},
                                                         {65, "forward on Hopper"},
                                                         {66, "backward on Hopper"},
                                                         {69, ""},
                                                         {70, "variants"},
                                                         {84, ""}};
  std::string_view found;
  for (const auto& [first, about] : tracks) {
    if (number >= first) found = about;
  }
  return found;
}

}  // namespace

std::string list_text() {
  std::size_t longest = 0;
  for (const Stage* stage : stages()) longest = std::max(longest, label(*stage).size());
  std::string text;
  for (const Stage* stage : stages()) {
    const std::size_t width = terminal_width();
    // Beside the name, or below it where the terminal is narrow.
    const bool below = width != 0 && width < 70;
    const std::string indentation(below ? 2 : longest + 1, ' ');
    std::string first = fmt::format("{:<{}} ", label(*stage), longest);
    if (below) {
      text += label(*stage) + "\n";
      first = indentation;
    }
    const std::string claim = fmt::format("{}claim: {}", indentation, stage->claim);
    const std::string takes = fmt::format("{}{}; {}; d: {}{}", indentation, passes(*stage), dtypes(*stage),
                                          stage->supports.head_dims_in_words(), features(*stage));
    for (const std::string& line : {first + std::string(stage->idea), claim, takes})
      text += joined(wrap(line, width, indentation + "  "), "\n") + "\n";
  }
  return text;
}

std::string list_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Stage* stage : stages()) {
    nlohmann::ordered_json dtype_names = nlohmann::ordered_json::array();
    for (Dtype dtype : stage->supports.dtypes) dtype_names.push_back(to_string(dtype));
    nlohmann::ordered_json feature_names = nlohmann::ordered_json::array();
    for (const Feature& feature : all_features) {
      if (stage->supports.features.*feature.taken) feature_names.push_back(feature.name);
    }
    list.push_back(
        {{"number", stage->number},
         {"name", stage->name},
         {"title", stage->title},
         {"idea", stage->idea},
         {"claim", stage->claim},
         {"before", stage->before},
         {"dtypes", dtype_names},
         {"head_dims", stage->supports.head_dims.empty()
                           ? nlohmann::ordered_json({{"up_to", max_head_dim}})
                           : nlohmann::ordered_json(std::vector(stage->supports.head_dims.begin(),
                                                                stage->supports.head_dims.end()))},
         {"features", feature_names},
         {"backend", to_string(stage->backend)},
         {"gpu", stage->gpu == Gpu::hopper ? "hopper" : "any"},
         {"forward", stage->forward != nullptr},
         {"backward", stage->backward != nullptr}});
    nlohmann::ordered_json& entry = list.back();
    entry["track"] = track(stage->number);
    // Variants are side by side: none is a step from another.
    entry["follows"] = stage->before != stage->number && track(stage->before) == track(stage->number) &&
                       stage->number < 70;
  }
  return json_text(list);
}

std::string list_markdown(const std::string& prefix) {
  std::string text = "| stage | the one idea | the claim that a test proves |\n|---|---|---|\n";
  for (const Stage* stage : stages()) {
    text += fmt::format("| [{}]({}{}/README.md) | {} | {} |\n", label(*stage), prefix, folder_name(*stage),
                        stage->idea, stage->claim);
  }
  return text;
}

}  // namespace flashladder
