#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/cli/climb_time.hpp"

namespace flashladder {

/// What became of the stages under one mask, a line each, and below what is to be said of them.
/// @param ideas  whether the stages' ideas have a column where there is room
std::string climb_table(const std::vector<Climbed>& all, bool ideas);

/// Where what is counted of stages of kernels comes from; "" where there are none.
std::string counted_where(const std::vector<Climbed>& all);
/// What stages of kernels move and compute under one mask, whose title is given; "" where there are none
/// that passed.
std::string ledger_table(const std::string& title, const std::vector<Climbed>& all);

/// A stage's entry in climb.json, without what came of it.
nlohmann::ordered_json stage_json(const Climbed& one);
/// What came of it under one mask.
nlohmann::ordered_json result_json(const Climbed& one);

}  // namespace flashladder
