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

/// All of tests/mutants/, in order of their names; of the stages that have their turn.
std::span<const Mutant> mutants();

/// Which part of the stages that is, "2/3" for the second of three; empty where it is all.
std::string_view turn_of_mutants();

}  // namespace flashladder
