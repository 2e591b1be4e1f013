#pragma once
#include <cstdint>
#include <string>

#include "common/attention/oracle.hpp"

namespace flashladder::lab {

/// Where `result` differs from `oracle` by more than rounding, where that is not everywhere: "Wrong are
/// columns 32 to 63 only"; that L or O alone does, and what NaN usually comes from. A sentence or more, or
/// "".
std::string where_wrong(const Problem& problem, const Result<float>& result, const Result<double>& oracle);

/// What a wrong O would be right for: other keys than the row sees, or those of another head. A sentence,
/// or "" where no such thing fits all wrong rows that are tried.
/// @param Bc  keys of a tile
std::string keys_in_place(const Inputs& inputs, const Result<float>& result, const Result<double>& oracle,
                          std::int64_t Bc);

/// What a wrong O of a problem with a softcap would be right for: another function of the scores. A
/// sentence, or "" as keys_in_place.
std::string scores_in_place(const Inputs& inputs, const Result<float>& result,
                            const Result<double>& oracle);

}  // namespace flashladder::lab
