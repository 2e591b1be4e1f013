#pragma once
#include <span>
#include <string>

#include "common/attention/stage.hpp"

namespace flashladder {

/// "00-02, 10, 11": the numbers of stages that are in order; three or more without a gap between them are a
/// range, as select_stages reads it.
std::string numbers_text(std::span<const Stage* const> some);

}  // namespace flashladder
