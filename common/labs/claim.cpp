#include "common/labs/claim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "common/check/count.hpp"
#include "common/error.hpp"
#include "common/io/terminal.hpp"
#include "common/labs/cases.hpp"

namespace flashladder::lab {
namespace {

// --- what the counters of the CPU stages count

/// A count that was taken by watching; -1 where not all was seen.
template <auto member>
std::int64_t watched(const Report& report) {
  return report.watched.complete ? report.watched.*member : -1;
}
template <auto member>
std::int64_t computed(const Report& report) {
  return report.watched.complete ? report.watched.operations.*member : -1;
}
/// A count of scores, which are of type Counted.
template <auto member>
std::int64_t counted(const Report& report) {
  return report.counted_reads ? report.*member : -1;
}

/// The count of this name of a report on a stage that claims this.
std::int64_t cpu_count(std::string_view name, const CpuClaim& claim, const Report& report) {
  static constexpr std::pair<std::string_view, std::int64_t (*)(const Report&)> all[] = {
      {"extra_memory", [](const Report& one) { return one.extra_bytes; }},
      {"allocations", [](const Report& one) { return one.allocations; }},
      {"score_reads", counted<&Report::score_reads>},
      {"scores_made", counted<&Report::scores_made>},
      {"K_reads", watched<&Watched::K_reads>},
      {"V_reads", watched<&Watched::V_reads>},
      {"workspace_writes", watched<&Watched::workspace_writes>},
      {"output_writes", watched<&Watched::output_writes>},
      {"exp", watched<&Watched::exp>},
      {"writing_threads", watched<&Watched::writers>},
      {"busiest_thread_rows", watched<&Watched::most_rows>},
      {"busiest_thread_writes", watched<&Watched::most_written>},
      {"locked_accesses", watched<&Watched::locked_accesses>},
      {"div", computed<&Operations::divisions>},
      {"operations", computed<&Operations::arithmetic>},
      {"single_operations", computed<&Operations::on_single_numbers>},
      {"lane_operations", computed<&Operations::on_lanes>},
  };
  if (name == "other_memory") {
    const Watched& seen = report.watched;
    const std::int64_t arrays = seen.stack_bytes > claim.stack_bytes ? seen.stack_bytes : 0;
    return seen.complete ? seen.static_bytes + arrays : -1;
  }
  for (const auto& [counter, count] : all) {
    if (counter == name) return count(report);
  }
  throw Error("nothing is known of the counter " + std::string(name));
}

// --- the claims of the stages of kernels

Rule rule_of(std::string_view counter) {
  for (const std::string_view overlap :
       {"bytes_in_flight", "flops_during_copies", "wgmma_bytes_in_flight", "exp_during_wgmmas"}) {
    if (counter == overlap) return Rule::at_least;
  }
  for (const std::string_view cost : {"exp", "div", "mul", "log", "barriers", "device_bytes",
                                      "shared_bytes_per_block", "most_exp_before_product"}) {
    if (counter == cost) return Rule::at_most;
  }
  return counter.starts_with("shared.") ? Rule::at_most : Rule::exact;
}

/// The ledger of the ladder's own stage on a job.
simt::Ledger ledger_of(const Stage& stage, const Job& job) {
  const auto count = job.pass == Pass::forward ? count_forward : count_backward;
  return count(stage, job.inputs, {.banks = job.banks, .os_threads = 1}, nullptr);
}

const ClosedForm* form_of(const Stage& stage, Pass pass, std::string_view counter) {
  const Claim* claim = claim_of(stage);
  return claim == nullptr ? nullptr : claim->of(pass).find(counter);
}

std::int64_t wavefronts(const simt::Ledger& ledger) {
  return static_cast<std::int64_t>(ledger.shared_total().wavefronts);
}
/// Wavefronts of shared memory beyond the fewest.
std::int64_t bank_conflicts(const simt::Ledger& ledger) {
  const simt::SharedTraffic all = ledger.shared_total();
  return static_cast<std::int64_t>(all.wavefronts - all.ideal_wavefronts);
}
/// Sectors of O beyond the fewest.
std::int64_t half_sectors(const simt::Ledger& ledger) {
  const auto O = ledger.global.find("O");
  if (O == ledger.global.end()) return 0;
  return static_cast<std::int64_t>(O->second.sectors - O->second.ideal_sectors);
}

/// `p` without the variants that a stage does not take.
Problem taken_by(const Stage& stage, Problem p) {
  if (!stage.supports.features.window) p.window = {};
  if (!stage.supports.features.softcap) p.softcap = 0;
  return p;
}

/// What the stage before counts on each job: by its closed form, where it has one, else by running it. Of a
/// variant that it does not take, it counts what it would do without it.
class StageBefore {
 public:
  StageBefore(const Lab& lab, const std::vector<Job>& jobs)
      : stage_(lab.before()), pass_(graded_pass(*lab.stage)), jobs_(jobs) {
    known_ = stage_ != nullptr && stage_->backend == lab.stage->backend;
    is_plain_ = known_ && std::ranges::any_of(jobs, [&](const Job& job) {
                  const Problem& p = job.inputs.problem;
                  return !stage_->supports.takes(p) && stage_->supports.takes(taken_by(*stage_, p));
                });
  }
  /// Whether there is a stage before that counts alike.
  bool known() const { return known_; }
  /// Whether what it computes is not what is asked for, but plain attention.
  bool is_plain() const { return is_plain_; }
  /// With its own tile.
  std::vector<std::int64_t> counts(std::string_view counter) { return counts(counter, nullptr); }
  /// With a tile of the size that `claim` has, where it has a closed form.
  std::vector<std::int64_t> counts_with_tile_of(const Claim& claim, std::string_view counter) {
    return counts(counter, &claim);
  }
  /// Its closed form; nullptr where it has none.
  const ClosedForm* form(std::string_view counter) const {
    return known_ ? form_of(*stage_, pass_, counter) : nullptr;
  }
  /// Whether `excess`, of what --banks counts, is above 0 on some job that it takes.
  template <class Excess>
  bool has(Excess excess) {
    return known_ && std::ranges::any_of(ledgers(), [&](const simt::Ledger& ledger) {
             return ledger.banks_analysed && excess(ledger) != 0;
           });
  }

 private:
  std::vector<std::int64_t> counts(std::string_view counter, const Claim* size_of) {
    std::vector<std::int64_t> all;
    const Claim& own = *claim_of(*stage_);
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (form(counter) == nullptr) {
        all.push_back(count_of(ledgers()[i], counter));
        continue;
      }
      const Problem problem = taken_by(*stage_, jobs_[i].inputs.problem);
      ClaimedTile its = own.symbols(problem);
      if (size_of != nullptr) {  // of another tile its size alone: the rest is how this stage goes about it
        const Symbols other = size_of->symbols(problem);
        its.Br = other.Br;
        its.Bc = other.Bc;
        if (is_plain_) its = other;  // a variant has the kernel of the stage before
      }
      all.push_back(form(counter)->value({problem, its}));
    }
    return all;
  }
  const std::vector<simt::Ledger>& ledgers() {
    if (ledgers_.empty()) {
      for (Job job : jobs_) {
        job.inputs.problem = taken_by(*stage_, job.inputs.problem);
        ledgers_.push_back(stage_->supports.takes(job.inputs.problem) ? ledger_of(*stage_, job)
                                                                      : simt::Ledger());
      }
    }
    return ledgers_;
  }

  const Stage* stage_;
  Pass pass_;
  const std::vector<Job>& jobs_;
  bool known_, is_plain_;
  std::vector<simt::Ledger> ledgers_;
};

bool reaches_all(const Counter& counter, const std::vector<std::int64_t>& counts,
                 const std::vector<Job>& jobs) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!reaches(counter.rule, counts[i], counter.claimed(jobs[i]))) return false;
  }
  return true;
}

/// Whether a counter is what the stage is about: the stage before does not reach it, or, being plain
/// attention, has less to count. What differs only because the tile is another one is no idea, unless the
/// closed form says something else too.
bool is_idea(Counter counter, const Claim& claim, StageBefore& before, const std::vector<Job>& jobs) {
  if (!before.known()) return true;
  if (before.is_plain()) counter.rule = Rule::exact;
  if (reaches_all(counter, before.counts(counter.name), jobs)) return false;
  if (!reaches_all(counter, before.counts_with_tile_of(claim, counter.name), jobs)) return true;
  const ClosedForm* form = before.form(counter.name);
  return form != nullptr && form->text() != counter.form;
}

/// What the reference counts on each job, found when it is first asked for.
class Reference {
 public:
  explicit Reference(const Stage& stage) : stage_(stage) {}
  const simt::Ledger& ledger(const Job& job) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = ledgers_.try_emplace({to_string(job.inputs.problem), job.banks});
    if (is_new) found->second = ledger_of(stage_, job);
    return found->second;
  }

 private:
  const Stage& stage_;
  std::mutex mutex_;
  std::map<std::pair<std::string, bool>, simt::Ledger> ledgers_;
};

/// All else that is counted, in jobs with `banks` or in all: no more than the reference's.
struct Cost {
  std::string name;
  Rule rule;
  bool banks;
  std::function<std::uint64_t(const simt::Ledger&)> of;
};

std::vector<Cost> costs_beside(const Forms<ClosedForm>& claimed, const simt::Ledger& reference) {
  std::vector<Cost> all;
  const auto add = [&](const std::string& name, Rule rule, bool banks, auto of) {
    const auto claims = [&](const ClosedForm& form) {
      const std::size_t unit = name.rfind('_');  // of bytes or of elements
      return form.counter == name ||
             (name.starts_with("shared.") &&
              form.counter.substr(0, unit) == std::string_view(name).substr(0, unit));
    };
    if (std::ranges::none_of(claimed.forms, claims)) all.push_back({name, rule, banks, of});
  };
  const auto counter = [&](const char* name, Rule rule, std::uint64_t simt::Counters::*member) {
    add(name, rule, false, [member](const simt::Ledger& ledger) { return ledger.*member; });
  };
  counter("add", Rule::near, &simt::Counters::add);
  counter("max", Rule::near, &simt::Counters::max);
  counter("shuffles", Rule::at_most, &simt::Counters::shuffles);
  counter("syncwarps", Rule::at_most, &simt::Counters::syncwarps);
  counter("named_barriers", Rule::at_most, &simt::Counters::named_barriers);
  counter("atomics", Rule::at_most, &simt::Counters::atomics);
  add("global.read_bytes", Rule::at_most, false,
      [](const simt::Ledger& ledger) { return ledger.global_total().read_bytes; });
  add("global.written_bytes", Rule::at_most, false,
      [](const simt::Ledger& ledger) { return ledger.global_total().written_bytes; });
  add("shared.read_bytes", Rule::at_most, false,
      [](const simt::Ledger& ledger) { return ledger.shared_total().read_bytes; });
  add("shared.written_bytes", Rule::at_most, false,
      [](const simt::Ledger& ledger) { return ledger.shared_total().written_bytes; });
  add("shared_bytes_per_block", Rule::at_most, false,
      [](const simt::Ledger& ledger) { return ledger.shared_bytes_per_block; });
  for (const auto& [array, traffic] : reference.shared) {
    for (const char* way : {"read_bytes", "written_bytes"}) {
      const std::string name = "shared." + array + "." + way;
      add(name, Rule::at_most, false,
          [name](const simt::Ledger& ledger) { return count_of(ledger, name); });
    }
  }
  for (const auto& [buffer, traffic] : reference.global) {
    const std::string name = "global." + buffer + ".sectors";
    add(name, Rule::near, true, [name](const simt::Ledger& ledger) { return count_of(ledger, name); });
  }
  add("shared.wavefronts", Rule::near, true, wavefronts);
  const auto busiest = [&](const char* name, std::uint64_t simt::Busiest::*member) {
    add(name, Rule::near, true, [member](const simt::Ledger& ledger) { return ledger.busiest.*member; });
  };
  busiest("busiest_thread.operations", &simt::Busiest::operations);
  busiest("busiest_thread.global_accesses", &simt::Busiest::global);
  busiest("busiest_thread.shared_accesses", &simt::Busiest::shared);
  return all;
}

/// What the reference counts of all that its claim says nothing of: a bound for the student's.
std::vector<Counter> cost_counters(const Lab& lab, const std::vector<Job>& jobs,
                                   const std::shared_ptr<Reference>& reference) {
  const Job& small = *std::ranges::find(jobs, true, &Job::banks);  // has all buffers and arrays
  std::vector<Counter> all;
  for (const Cost& cost : costs_beside(claim_of(*lab.stage)->of(small.pass), reference->ledger(small))) {
    const auto in = [cost](const Job& job, const simt::Ledger& ledger) {
      return cost.banks && !job.banks ? 0 : static_cast<std::int64_t>(cost.of(ledger));
    };
    all.push_back({.name = cost.name,
                   .form = "",
                   .rule = cost.rule,
                   .idea = false,
                   .claimed = [=](const Job& job) { return in(job, reference->ledger(job)); },
                   .counted = [=](const Job& job, const Report& report) { return in(job, report.ledger); },
                   .before = {}});
  }
  return all;
}

/// What --banks counts beyond the fewest, where the reference has nothing of it.
std::optional<Counter> excess_counter(const char* name, std::int64_t (*excess)(const simt::Ledger&),
                                      Reference& reference, const std::vector<Job>& jobs,
                                      StageBefore& before) {
  for (const Job& job : jobs) {
    if (job.banks && excess(reference.ledger(job)) != 0) return std::nullopt;
  }
  return Counter{
      .name = name,
      .form = "0",
      .rule = Rule::exact,
      .idea = before.has(excess),
      .claimed = [](const Job&) { return std::int64_t{0}; },
      .counted = [excess](const Job& job,
                          const Report& report) { return job.banks ? excess(report.ledger) : 0; },
      .before = {}};
}

std::vector<Counter> kernel_counters(const Lab& lab, const std::vector<Job>& jobs) {
  const Claim& claim = *claim_of(*lab.stage);
  StageBefore stage_before(lab, jobs);
  const auto reference = std::make_shared<Reference>(*lab.stage);
  std::vector<Counter> all;
  for (const ClosedForm& form : claim.of(graded_pass(*lab.stage)).forms) {
    Counter counter{
        .name = std::string(form.counter),
        .form = form.text(),
        .rule = rule_of(form.counter),
        .idea = false,
        .claimed = [&claim,
                    &form](const Job& job) { return form.value(claim.symbols(job.inputs.problem)); },
        .counted = [&form](const Job&,
                           const Report& report) { return count_of(report.ledger, form.counter); },
        .before = {}};
    if (form.random_too) {  // the numbers say how much: what the reference needs for them
      counter.form = "the reference's, at least " + form.text();
      // What is asked of a number may be asked in more than one way; a shuffle is a shuffle.
      counter.rule = form.counter == "shuffles" ? Rule::at_most : Rule::near;
      counter.claimed = [reference, &form](const Job& job) {
        return count_of(reference->ledger(job), form.counter);
      };
    }
    counter.idea = is_idea(counter, claim, stage_before, jobs);
    if (stage_before.known()) counter.before = stage_before.counts(form.counter);
    all.push_back(std::move(counter));
  }
  if (auto conflicts = excess_counter("bank_conflicts", bank_conflicts, *reference, jobs, stage_before))
    all.push_back(std::move(*conflicts));
  if (claim.whole_sectors_of_O) {
    if (auto halves = excess_counter("half_sectors", half_sectors, *reference, jobs, stage_before))
      all.push_back(std::move(*halves));
  }
  std::ranges::move(cost_counters(lab, jobs, reference), std::back_inserter(all));
  return all;
}

std::vector<Counter> cpu_counters(const Lab& lab, const std::vector<Job>& jobs) {
  const CpuClaim& claim = *cpu_claim_of(*lab.stage);
  const CpuClaim* before = lab.before() == nullptr ? nullptr : cpu_claim_of(*lab.before());
  const auto value = [](const CpuClaim& of, const CpuForm& form, const Job& job) {
    return form.count.value(of.symbols(job.inputs.problem, job.threads));
  };
  std::vector<Counter> all;
  for (const CpuForm& form : claim.forward.forms) {
    Counter counter{
        .name = std::string(form.counter),
        .form = form.count.text(),
        .rule = form.rule,
        .idea = false,
        .claimed = [&claim, &form, value](const Job& job) { return value(claim, form, job); },
        .counted = [&claim, &form](const Job&,
                                   const Report& report) { return cpu_count(form.counter, claim, report); },
        .before = {}};
    const CpuForm* old = before == nullptr ? nullptr : before->forward.find(form.counter);
    counter.idea = !form.price && old == nullptr;
    for (std::size_t i = 0; old != nullptr && i < jobs.size(); ++i) {
      counter.before.push_back(value(*before, *old, jobs[i]));
      counter.idea = counter.idea || !reaches(form.rule, counter.before.back(), counter.claimed(jobs[i]));
    }
    all.push_back(std::move(counter));
  }
  return all;
}

}  // namespace

// --- feedback

std::string words_of_counter(const std::string& name) {
  const std::size_t dot = name.find('.'), last = name.rfind('.');
  if (dot != last) {
    const std::string what = name.substr(dot + 1, last - dot - 1), how = name.substr(last + 1);
    if (how == "sectors") return fmt::format("sectors of 32 bytes of {} that warps ask for", what);
    const std::string unit = how.ends_with("_bytes") ? "bytes" : "elements";
    if (how == "array_bytes") return fmt::format("bytes of a shared array {} for a block", what);
    const char* verb = how.starts_with("read")     ? "read from"
                       : how.starts_with("atomic") ? "added atomically to"
                                                   : "written to";
    return fmt::format("{} of {} {} {} memory", unit, what, verb,
                       name.starts_with("shared.") ? "shared" : "global");
  }
  static constexpr std::pair<std::string_view, const char*> words[] = {
      {"extra_memory", "bytes of extra memory in use at once"},
      {"score_reads", "reads of scores"},
      {"scores_made", "scores computed"},
      {"allocations", "calls for memory other than the workspace's"},
      {"other_memory", "bytes of arrays that are static or on the stack"},
      {"K_reads", "numbers read from K"},
      {"V_reads", "numbers read from V"},
      {"workspace_writes", "numbers written to extra memory"},
      {"output_writes", "numbers written to O and L"},
      {"writing_threads", "threads that write rows of O"},
      {"busiest_thread_rows", "rows of L written by the busiest thread"},
      {"busiest_thread_writes", "numbers of O written by the busiest thread"},
      {"locked_accesses", "accesses to memory while other threads wait for a lock"},
      {"operations", "additions, multiplications and divisions"},
      {"single_operations", "operations on single floats"},
      {"lane_operations", "operations in the lanes of vectors"},
      {"device_bytes", "bytes of extra device memory"},
      {"flops_cuda_cores", "matmul FLOPs on CUDA cores"},
      {"flops_tensor_cores", "matmul FLOPs on tensor cores"},
      {"flops_during_copies", "matmul FLOPs while copies are under way"},
      {"bytes_in_flight", "bytes of copies under way, added up over the barriers"},
      {"most_bytes_in_flight", "bytes of copies under way at a barrier, the most"},
      {"async_copies", "copies by cp.async"},
      {"copying_threads", "threads that begin copies"},
      {"tma_loads", "loads of a box by TMA"},
      {"tma_stores", "stores of a box by TMA"},
      {"tma_read_bytes", "bytes that TMA reads from global memory"},
      {"tma_written_bytes", "bytes that TMA writes to global memory"},
      {"bulk_reduces", "reductions in bulk"},
      {"dependent_launches", "launches that may begin before the kernel before has ended"},
      {"mbarrier_arrivals", "arrivals of threads at mbarriers"},
      {"mbarrier_waits", "waits of threads at mbarriers"},
      {"wgmmas", "wgmmas of a warpgroup"},
      {"wgmma_waits", "waits of threads for wgmmas"},
      {"wgmma_read_bytes", "bytes of shared memory that wgmmas read"},
      {"wgmma_bytes_in_flight", "bytes of copies under way, added up over the wgmmas of each warp"},
      {"exp_during_wgmmas", "exponentials of threads with wgmmas of their own under way"},
      {"unordered_wgmmas", "pairs of wgmmas of two warpgroups, either of which may begin first"},
      {"most_registers", "registers of a thread after setmaxnreg, the most"},
      {"fewest_registers", "registers of a thread after setmaxnreg, the fewest"},
      {"bank_conflicts", "passes over the banks of shared memory more than are needed"},
      {"half_sectors", "sectors of O, 32 bytes, written more than its bytes fill"},
      {"most_exp_before_product", "exponentials of a thread before a product or between two, the most"},
      {"most_tiles_of_multiprocessor", "tiles of the busiest of 16 multiprocessors"},
      {"exp", "exponentials"},
      {"exp2", "exponentials to base 2"},
      {"div", "divisions"},
      {"mul", "multiplications"},
      {"fma", "fused multiply-adds"},
      {"log", "logarithms"},
      {"masked_tiles", "masked tiles"},
      {"add", "additions"},
      {"max", "maxima of two"},
      {"syncwarps", "calls of __syncwarp"},
      {"named_barriers", "named barriers"},
      {"atomics", "atomic operations"},
      {"global.read_bytes", "bytes read from global memory"},
      {"global.written_bytes", "bytes written to global memory"},
      {"shared.read_bytes", "bytes read from shared memory"},
      {"shared.written_bytes", "bytes written to shared memory"},
      {"shared.wavefronts", "passes over the banks of shared memory"},
      {"shared_bytes_per_block", "bytes of shared memory for a block"},
      {"busiest_thread.operations", "operations of the busiest thread"},
      {"busiest_thread.global_accesses", "accesses of the busiest thread to global memory"},
      {"busiest_thread.shared_accesses", "accesses of the busiest thread to shared memory"},
  };
  const auto* const found =
      std::ranges::find(words, name, &std::pair<std::string_view, const char*>::first);
  return found == std::end(words) ? name : found->second;
}

namespace {

/// What usually makes a count of this kind wrong, where the handout does not say.
std::string usual_cause(const std::string& name, bool too_many, bool none_claimed) {
  const std::size_t dot = name.find('.'), last = name.rfind('.');
  const std::string what = dot == last ? "" : name.substr(dot + 1, last - dot - 1);
  if (name.starts_with("global.") && name.ends_with("read_elements")) {
    if (!too_many) return fmt::format("is {} loaded for every tile that needs it?", what);
    if (none_claimed)
      return fmt::format("can {} stay on the chip, in registers or in shared memory?", what);
    return fmt::format("is {} loaded inside a loop in which it does not change, or past its end?", what);
  }
  if (name.starts_with("global.") && name.ends_with("written_elements")) {
    if (!too_many) return fmt::format("is every row of {} stored, also that of a ragged tile?", what);
    return fmt::format("is {} stored inside a loop and not once behind it, or by several threads?", what);
  }
  if (name.ends_with("array_bytes")) return fmt::format("is the shared array {} still needed?", what);
  if (name.ends_with(".sectors"))
    return fmt::format("do neighbouring lanes take elements of {} that lie next to each other?", what);
  if (name.starts_with("shared.") && !what.empty()) {
    if (!too_many) return fmt::format("is all of {} used?", what);
    return name.ends_with("written_bytes") || name.ends_with("written_elements")
               ? fmt::format(
                     "is {} written inside a loop in which it does not change, or by several threads?",
                     what)
               : fmt::format(
                     "is {} read again, perhaps inside a loop, where a variable could keep it? Read it "
                     "into a variable",
                     what);
  }
  static constexpr std::tuple<std::string_view, const char*, const char*> causes[] = {
      {"extra_memory", "which array is larger than it need be, or need not be there?",
       "where else is memory taken from?"},
      {"allocations", "take memory from call.workspace alone: no std::vector, new or malloc.", ""},
      {"scores_made", "is a score computed twice, or one that the row does not see?",
       "are scores left out, or held in a plain float?"},
      {"device_bytes", "which ExtraBuffer is larger than it need be, or need not be there?", ""},
      {"blocks", "look at the grid of the launch.", "look at the grid of the launch."},
      {"tiles", "are tiles visited that no row sees, or tiles past the end?",
       "are tiles left out, or not counted by count_tile()?"},
      {"masked_tiles", "are tiles masked in which every row sees every key?",
       "are there tiles with a pair that is not visible, and not masked?"},
      {"flops_cuda_cores", "is a product computed more than once, or where tensor cores should?",
       "is a product left out, or written with * and + instead of mac()?"},
      {"flops_tensor_cores", "is a product computed more than once?",
       "is a product left out, or not made by mma?"},
      {"barriers", "is there a barrier that no hazard needs, or one inside a loop?", ""},
      {"bytes_in_flight", "", "does a wait come too early, or does the copy begin too late?"},
      {"flops_during_copies", "",
       "does the copy of the next tile begin before the products of this one, and is it not waited for?"},
      {"wgmma_bytes_in_flight", "",
       "does the copy of the next tile begin before the products of this one, and is it not waited for?"},
      {"exp_during_wgmmas", "",
       "is a product waited for before the exponentials that could run beside it?"},
      {"unordered_wgmmas",
       "does a warpgroup begin a product before it has its turn, or behind the place where it passes it?",
       ""},
      {"copying_threads", "does more than one thread begin what one could?",
       "look at which threads begin copies."},
      {"tma_loads", "is a tile loaded that no row sees, or in more boxes than it has panels?",
       "is a tile left out, or a panel of it?"},
      {"tma_read_bytes", "is something loaded again that is there already?",
       "are the coordinates those of the tile, the fastest first?"},
      {"mbarrier_arrivals", "who arrives: each thread, or one of those that the mbarrier expects?",
       "does everybody arrive that the mbarrier expects?"},
      {"mbarrier_waits", "is the same phase waited for twice?",
       "does each thread wait that uses what comes with the phase?"},
      {"wgmmas", "is a product computed more than once?", "is a product left out?"},
      {"wgmma_waits", "is each wgmma waited for, where one wait behind the last of them is enough?",
       "is every product waited for?"},
      {"most_registers", "", "do those that multiply take the registers that others have given away?"},
      {"fewest_registers", "does the producer's warpgroup give its registers away?", ""},
      {"add", "is something added up twice, or apart from what it could be added to at once?", ""},
      {"max", "is a maximum taken again, or by every lane of what the lanes could share?", ""},
      {"shuffles", "is a sum or a maximum over the lanes taken inside a loop, or of what all lanes have?",
       ""},
      {"syncwarps", "is there a __syncwarp that no hazard needs, or one inside a loop?", ""},
      {"global.read_bytes", "is a buffer read that the reference has not, or one through another name?",
       ""},
      {"global.written_bytes", "is a buffer written that the reference has not?", ""},
      {"shared.read_bytes", "does something go through shared memory that could stay in registers?", ""},
      {"shared.written_bytes", "does something go through shared memory that could stay in registers?", ""},
      {"shared.wavefronts", "is shared memory read more often, or do lanes of a warp meet in a bank?", ""},
      {"shared_bytes_per_block", "which shared array could be registers, or smaller?", ""},
      {"busiest_thread.operations", "does one thread, one warp or one block compute what all could share?",
       ""},
      {"busiest_thread.global_accesses",
       "does one thread, one warp or one block load or store what all threads could share?", ""},
      {"busiest_thread.shared_accesses",
       "does one thread or one warp read or write what all threads could share?", ""},
      {"most_exp_before_product", "are exponentials computed for more keys than the next product takes?",
       ""},
      {"half_sectors", "do neighbouring lanes write neighbouring bytes of a row, 32 or more?", ""},
      {"bank_conflicts",
       "which lanes of a warp meet in a bank? ./ladder ledger --banks shows the arrays of the reference.",
       ""},
  };
  for (const auto& [counter, many, few] : causes) {
    if (counter == name) return too_many ? many : few;
  }
  return too_many ? "is it computed again where the result is there already?" : "";
}

/// "8 times", "1.06 times": how much more the larger is.
std::string ratio_words(std::int64_t larger, std::int64_t smaller) {
  return larger % smaller == 0
             ? fmt::format("{} times", larger / smaller)
             : fmt::format("{:.3g} times", static_cast<double>(larger) / static_cast<double>(smaller));
}

}  // namespace

std::vector<Counter> counters_of(const Lab& lab, const std::vector<Job>& jobs) {
  return lab.stage->backend == Backend::cpu ? cpu_counters(lab, jobs) : kernel_counters(lab, jobs);
}

const char* sign_of(Rule rule) {
  switch (rule) {
    case Rule::exact:
      return "=";
    case Rule::at_most:
      return "<=";
    case Rule::near:
      return "<= 5/4 of";
    case Rule::at_least:
      return ">=";
  }
  return "";
}

bool reaches(Rule rule, std::int64_t counted, std::int64_t claimed) {
  switch (rule) {
    case Rule::exact:
      return counted == claimed;
    case Rule::at_most:
      return counted >= 0 && counted <= claimed;
    case Rule::near:
      return counted >= 0 && counted <= claimed + claimed / 4;
    case Rule::at_least:
      return counted >= claimed;
  }
  return false;
}

std::string feedback_on(const Lab& lab, const Counter& counter, const std::vector<Job>& jobs,
                        const std::vector<std::int64_t>& counted) {
  std::size_t first = 0;
  while (first + 1 < jobs.size() && reaches(counter.rule, counted[first], counter.claimed(jobs[first])))
    ++first;
  const std::int64_t got = counted[first], claimed = counter.claimed(jobs[first]);
  if (got < 0 && counter.name.starts_with("score"))
    return "not counted: the stage has no .forward_counting any more, with the scores of type Counted";
  if (got < 0)
    return "not counted: it runs threads that OpenMP did not start: use #pragma omp parallel for";
  const std::string what = words_of_counter(counter.name);
  std::string text;
  if (claimed == 0 || got == 0) {
    text = fmt::format("{} {}, the reference {}", got == 0 ? "no" : grouped(got), what,
                       claimed == 0 ? "none" : grouped(claimed));
  } else if (got > claimed) {
    text = fmt::format("{} {}, {} the {} of the reference", grouped(got), what, ratio_words(got, claimed),
                       grouped(claimed));
  } else {
    text = fmt::format("{} {}, the reference {}, {} as many", grouped(got), what, grouped(claimed),
                       ratio_words(claimed, got));
  }
  text += fmt::format(" ({})", words_of(jobs[first]));
  if (counted == counter.before) text += fmt::format(", as in stage {}", label(*lab.before()));
  const std::string hint = lab.handout.hint(counter.name, got > claimed);
  const std::string cause = !hint.empty() ? hint : usual_cause(counter.name, got > claimed, claimed == 0);
  return cause.empty() ? text : text + ". " + static_cast<char>(std::toupper(cause[0])) + cause.substr(1);
}

std::string bypass_in(const Stage& stage, const Job& job, const Report& report) {
  const Claim* claim = claim_of(stage);
  if (claim == nullptr) return "";
  const Problem& p = job.inputs.problem;
  const Symbols symbols = claim->symbols(p);
  std::int64_t seeing_rows = 0;
  for (std::int64_t i = 0; i < p.Nq; ++i) seeing_rows += p.keys(i).size() > 0;
  const std::int64_t BH = symbols.BH, kv = p.batch * p.kv_heads;
  const std::int64_t seen_keys = Interval<std::int64_t>{p.keys(0).first, p.keys(p.Nq - 1).end}.size();
  const bool forward = job.pass == Pass::forward;
  struct Need {
    const char* counter;
    std::int64_t least;
    const char* how;
  };
  std::vector<Need> needs = {
      {"global.Q.read_elements", BH * seeing_rows * p.d, "loads of Q"},
      {"global.K.read_elements", kv * seen_keys * p.d, "loads of K"},
      {"global.V.read_elements", kv * seen_keys * p.d, "loads of V"},
  };
  if (forward) {
    needs.push_back({"global.O.written_elements", BH * p.Nq * p.d, "stores to O"});
    needs.push_back({"global.L.written_elements", BH * p.Nq, "stores to L"});
  } else {
    needs.push_back({"global.dO.read_elements", BH * seeing_rows * p.d, "loads of dO"});
    needs.push_back({"global.dQ.written_elements", BH * p.Nq * p.d, "stores to dQ"});
    needs.push_back({"global.dK.written_elements", kv * p.Nk * p.d, "stores to dK"});
    needs.push_back({"global.dV.written_elements", kv * p.Nk * p.d, "stores to dV"});
  }
  const auto too_few = [](const char* what, std::int64_t counted, std::int64_t least) {
    return fmt::format(
        "the ledger has {} {}, and no way to compute attention has fewer than {}: go through gmem "
        "pointers, f32 and mac(), and let the kernel do the work",
        grouped(counted), what, grouped(least));
  };
  for (const Need& need : needs) {
    std::int64_t least = need.least;
    // A stage that derives L beside the count writes none, and the next one may still do so.
    for (const Stage* one : {&stage, &find_stage(stage.before)}) {
      if (const ClosedForm* form = form_of(*one, job.pass, need.counter))
        least = std::min(least, form->value(symbols));
    }
    const std::int64_t counted = count_of(report.ledger, need.counter);
    if (counted < least) return too_few(need.how, counted, least);
  }
  const auto flops =
      static_cast<std::int64_t>(report.ledger.flops_cuda_cores + report.ledger.flops_tensor_cores);
  // S and P V; S and dP again, and what they add to dQ, dK and dV.
  const std::int64_t least = (forward ? 2 : 5) * 2 * BH * p.visible_pairs() * p.d;
  return flops < least ? too_few("matmul FLOPs", flops, least) : "";
}

std::string uncounted_in(const Stage& stage, const Job& job, const Report& report) {
  const Claim* claim = claim_of(stage);
  if (claim == nullptr || !job.watched || report.failure != Failure::none) return "";
  const simt::Ledger& ledger = report.ledger;
  const Operations& done = report.watched.operations;
  // The ladder's own kernels come out even, but for what a thread makes of the scale, and a logarithm a
  // row.
  const struct {
    const char* what;
    std::int64_t executed;
    std::uint64_t counted;
    std::int64_t spare;  ///< In each tile of rows.
  } kinds[] = {
      {"divisions", done.divisions, ledger.div, 64},
      {"exponentials", report.watched.exp, ledger.exp, 0},
      {"additions, multiplications and divisions", done.arithmetic,
       ledger.flops_cuda_cores + ledger.add + ledger.mul + ledger.div, 2048},
  };
  const Symbols symbols = claim->symbols(job.inputs.problem);
  for (const auto& kind : kinds) {
    const auto counted = static_cast<std::int64_t>(kind.counted);
    if (kind.executed <= counted + kind.spare * symbols.BH * symbols.Tr) continue;
    return fmt::format(
        "the processor ran {} {} of floating-point numbers in its machine code, and the ledger has {} of "
        "them: all that a stage computes is to be counted, in f32, by mac() and mma, in a kernel that "
        "launch() starts ({})",
        grouped(kind.executed), kind.what, grouped(counted), words_of(job));
  }
  return "";
}

}  // namespace flashladder::lab
