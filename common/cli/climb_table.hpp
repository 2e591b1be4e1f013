#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/cli/climb_time.hpp"

namespace flashladder {

/// What became of the stages, a line each, and below what is to be said of them.
std::string climb_table(const std::vector<Climbed>& all);

/// What stages of kernels move and compute; "" where there are none that passed.
std::string ledger_table(const std::vector<Climbed>& all);

/// A stage's entry in climb.json.
nlohmann::ordered_json stage_json(const Climbed& one);

}  // namespace flashladder
