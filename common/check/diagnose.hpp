#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/attention/stage.hpp"

namespace flashladder {

/// What a kernel showed by probe().
struct Intermediate {
  char name[3];       ///< "S", "m", "l", "O", "O~", or "m~": an m that may be less than the maximum so far.
  std::int64_t head;  ///< Of all query heads.
  int row;            ///< Of the head.
  int column;         ///< Key, or column of O.
  float value;        ///< What it was.
};

/// What intermediates say of a wrong output.
struct Diagnosis {
  std::string first;               ///< The first that is wrong, in one sentence; "" where none is.
  std::vector<std::string> right;  ///< The names of those that are right wherever they were shown.
};

/// Compares what the kernels of `stage` showed with the definition in fp64: in the order of the key tiles,
/// and within a tile S, m, l, O. Where m is "m~", l and O~ are what belongs to that m.
Diagnosis diagnose(const Stage& stage, const Inputs& inputs, const std::vector<Intermediate>& shown);

/// Diagnosis::first of `stage` on the emulator: the intermediate, its head, row and tile; "" when all are
/// right up to rounding.
std::string first_divergence(const Stage& stage, const Inputs& inputs);

}  // namespace flashladder
