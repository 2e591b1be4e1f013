#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/attention/stage.hpp"
#include "common/io/terminal.hpp"

namespace flashladder {

/// The longest N that --memory emulates, which takes 16 times as long for every fourfold N.
inline constexpr std::int64_t emulated_memory_up_to = 4096;

/// The longest N of --memory for backward passes: what they are given of the forward pass is computed
/// plainly.
inline constexpr std::int64_t backward_memory_up_to = 4096;

/// The peak extra memory of each stage over N, from real runs of one causal head (the mask halves the time,
/// not the memory), in the dtype that it is given an input of `dtype` in. A stage that does not fit ends
/// its line: longer sequences would not fit either.
nlohmann::ordered_json measure_memory(const std::vector<const Stage*>& chosen, std::int64_t d, Dtype dtype,
                                      std::int64_t up_to, Pass pass, Progress& progress);

/// The same as a table.
std::string memory_table(const nlohmann::ordered_json& memory);

}  // namespace flashladder
