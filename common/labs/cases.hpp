#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/stage.hpp"
#include "common/check/inputs.hpp"
#include "common/claims/symbols.hpp"
#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// The job of running a lab's stage on `inputs`, in the pass that its labs are of.
Job job_on(const Stage& stage, const Inputs& inputs, std::uint64_t seed);

/// The pass that a lab of `stage` is of: the forward pass, where it has one.
Pass graded_pass(const Stage& stage);

/// The inputs of a job without the keys that its mask, which has moved, hides from all rows.
Inputs seen_inputs(const Job& job);

/// The cases of one family of inputs: ragged and whole tiles, more queries than keys and the reverse,
/// grouped heads, rows that see no key, all layouts, a scale of its own. The same for the same seed.
std::vector<Job> cases_of(const Family& family, const Stage& stage, std::uint64_t seed);

/// The cases that are looked through for races and the like, under three schedules; of a CPU stage, the
/// same problem with one thread and with several.
std::vector<Job> clean_cases(const Stage& stage);
/// The case whose rows of O, or of dQ, lie far apart.
std::vector<Job> far_apart_cases(const Stage& stage);

/// The case whose mask is not in the corner: only a file that asks n.visible_keys() gets it right.
std::vector<Job> moved_mask_cases(const Stage& stage);

/// The cases that the claim is counted on; of a stage of kernels the last of them have `banks`.
std::vector<Job> counted_cases(const Stage& stage);

/// The problems of all cases above.
std::vector<Problem> problems_of_cases(const Stage& stage);

/// The tile that the stage claims for a problem.
ClaimedTile tile_of(const Stage& stage, const Problem& problem);

/// "B=2 H=4 Hkv=2 Nq=65 Nk=97 d=32 causal fp32, rows_first"
std::string words_of(const Job& job);

/// What the wrong ones of some cases have in common and none or few of the right ones have, such as "those
/// with a causal mask", or "all of them with ..." where some right ones have it too; "" where there is no
/// such thing.
std::string common_trait(const Stage& stage, const std::vector<Job>& jobs, const std::vector<bool>& right);

}  // namespace flashladder::lab
