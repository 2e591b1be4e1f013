#pragma once
#include <string>

#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// The mistake in a forward pass that gives just these wrong outputs: one of those that are often made is
/// named in a sentence. "" where none of them gives these outputs.
/// @param keys_of_tile  How many keys the online softmax takes at a time.
std::string known_mistake(const Job& job, const Result<float>& got, std::int64_t keys_of_tile);

/// A problem like a job's, with rows of V in which a single number is 1, so that O shows the weights P.
Job weights_job(const Job& job);
/// What is wrong with the weights that came of weights_job(); "" where nothing is.
std::string wrong_weights(const Job& job, const Result<float>& got);

}  // namespace flashladder::lab
