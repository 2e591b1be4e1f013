#pragma once
// The problems that every stage is tested on: shapes, masks and families of inputs in full, and whatever
// else can go wrong chosen so that every two traits come together.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check/inputs.hpp"
#include "common/check/run.hpp"

namespace flashladder {

/// What a mistake may depend on.
enum Trait {
  rows,
  keys,
  mask,
  window,
  softcap,
  prefix,
  alibi,
  bias,
  sinks,
  dropout,
  packing,
  block_map,
  family,
  group,
  heads,
  batch,
  layout,
  scale,
  dtype,
  head_dim,
  traits
};

/// Of each trait, which of its levels a case has.
using Levels = std::array<int, traits>;

/// The name of a trait, with its levels.
struct TraitText {
  std::string name;
  std::vector<std::string> levels;
};
const TraitText& text_of(Trait trait);

/// A problem, the family of its inputs, and how its tensors lie in memory.
struct Case {
  Problem problem;
  std::size_t family;  ///< Of input_families().
  Layout layout;

  Levels levels() const;
  Inputs inputs(std::uint64_t seed) const;
  std::string text() const;
};

/// How the sequences of a case are packed.
enum class Packed {
  none,
  several,
  with_empty,   ///< Some have no rows, no keys, or neither.
  partly_used,  ///< Some keys at the end of a sequence are not used, and of one none.
};
/// Sequences that fill the rows and keys of p in this way.
Packing packing_of(const Problem& p, Packed how);

/// Whether a block of this stage of kernels computes several tiles of rows, or backward of keys, where
/// there are many.
bool blocks_stay(const Stage& stage);

/// The cases of a stage's forward or backward pass, the same ones for all that take the same.
const std::vector<Case>& make_cases(const Stage& stage, Pass pass);

/// In how many of `cases` levels of two traits come together; `possible` are all the pairs that some choice
/// of what is chosen has.
struct Coverage {
  int fewest = 0;   ///< Of all pairs that are possible.
  int missing = 0;  ///< Pairs that are possible and in no case.
};
/// [first trait][second trait]
std::array<std::array<Coverage, traits>, traits> coverage_of(const Stage& stage, Pass pass);

}  // namespace flashladder
