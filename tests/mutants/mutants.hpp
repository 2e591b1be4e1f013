#pragma once
#include <span>
#include <string_view>

#include "common/attention/stage.hpp"

namespace flashladder {

/// A stage with one mistake in it.
struct Mutant {
  std::string_view name;  ///< Of tests/mutants/<name>.patch: the stage's number and what is wrong.
  const Stage* stage;     ///< The stage as patched.
  int most_d;             ///< The largest head dimension that it is compiled for and tried with.
};

/// All of tests/mutants/, in order of their names.
std::span<const Mutant> mutants();

}  // namespace flashladder
