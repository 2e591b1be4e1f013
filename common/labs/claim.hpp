#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/claims/cpu_claim.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// One count of a claim.
struct Counter {
  std::string name;                                 ///< As in the claim: "global.K.read_elements".
  std::string form;                                 ///< Its closed form, in symbols; "": the reference's.
  Rule rule;                                        ///< How it may differ.
  bool idea;                                        ///< Whether the stage before does not reach it.
  std::function<std::int64_t(const Job&)> claimed;  ///< What it is to be.
  std::function<std::int64_t(const Job&, const Report&)> counted;  ///< What it was.
  std::vector<std::int64_t>
      before;  ///< What the stage before has, job by job; empty where it is not known.
};

/// "=", "<=" or ">=".
const char* sign_of(Rule rule);

/// The counts of a lab's claim: for each of `jobs` and a report of it.
std::vector<Counter> counters_of(const Lab& lab, const std::vector<Job>& jobs);

/// Whether a count keeps its rule.
bool reaches(Rule rule, std::int64_t counted, std::int64_t claimed);

/// What a counter counts, in words: "elements of K read from global memory".
std::string words_of_counter(const std::string& name);

/// What a wrong count says of the code; `counted` in the order of `jobs`.
std::string feedback_on(const Lab& lab, const Counter& counter, const std::vector<Job>& jobs,
                        const std::vector<std::int64_t>& counted);

/// What bypasses the counting: "" when the ledger has at least the loads, stores and products that no way
/// to compute attention can do without.
std::string bypass_in(const Stage& stage, const Job& job, const Report& report);

/// What a stage of kernels computed beside the ledger in a job that was watched, by its machine code; ""
/// where that is too little to matter.
std::string uncounted_in(const Stage& stage, const Job& job, const Report& report);

}  // namespace flashladder::lab
