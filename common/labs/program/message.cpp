#include "common/labs/program/message.hpp"

#include <cstring>
#include <map>
#include <type_traits>

#include "common/error.hpp"

namespace flashladder::lab {
namespace {

/// Writes values one after the other.
class Out {
 public:
  std::string bytes;

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { raw(&value, sizeof value); }
  void put(const std::string& text) {
    put(text.size());
    raw(text.data(), text.size());
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    raw(values.data(), values.size() * sizeof(T));
  }
  template <class T>
  void put(const std::map<std::string, T>& values) {
    put(values.size());
    for (const auto& [name, value] : values) {
      put(name);
      put(value);
    }
  }
  void raw(const void* from, std::size_t count) {
    if (count != 0) bytes.append(static_cast<const char*>(from), count);
  }
};

/// Reads what Out wrote. What it reads may come from a program gone wrong: every size is checked.
class In {
 public:
  explicit In(std::string_view bytes) : rest_(bytes) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  void require_end() const {
    if (!rest_.empty()) fail();
  }

 private:
  [[noreturn]] static void fail() { throw Error("a message of the wrong length"); }

  template <class T>
  requires std::is_trivially_copyable_v<T>
  void get(T& value) { raw(&value, sizeof value); }
  void get(std::string& text) {
    text.resize(size(1));
    raw(text.data(), text.size());
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.resize(size(sizeof(T)));
    raw(values.data(), values.size() * sizeof(T));
  }
  template <class T>
  void get(std::map<std::string, T>& values) {
    for (std::size_t left = size(1); left > 0; --left) {
      std::string name;
      get(name);
      get(values[name]);
    }
  }
  /// The number of elements that follow, of `each` bytes or more.
  std::size_t size(std::size_t each) {
    std::size_t count = 0;
    get(count);
    if (count > rest_.size() / each) fail();
    return count;
  }
  void raw(void* to, std::size_t count) {
    if (count > rest_.size()) fail();
    if (count != 0) std::memcpy(to, rest_.data(), count);
    rest_.remove_prefix(count);
  }

  std::string_view rest_;
};

// One list of the members serves both ways: `Part` is const for Out.

template <class Archive, class Part>
void transfer_problem(Archive& archive, Part& problem) {
  // By their order: with a member more this does not compile.
  auto& [batch, q_heads, kv_heads, Nq, Nk, d, causal, window, softcap, prefix, alibi, bias_batch,
         bias_heads, bias_rows, sinks, dropout, packing, block_map, scale, dtype] = problem;
  auto& [dropped, seed, seed_in_memory] = dropout;
  auto& [sequences, partly_used, cu_seqlens_q, cu_seqlens_k, seqused_k] = packing;
  auto& [map_batch, map_heads, map_rows, map_keys, live] = block_map;
  archive(batch, q_heads, kv_heads, Nq, Nk, d, causal, window, softcap, prefix, alibi, bias_batch,
          bias_heads, bias_rows, sinks, dropped, seed, seed_in_memory, sequences, partly_used, cu_seqlens_q,
          cu_seqlens_k, seqused_k, map_batch, map_heads, map_rows, map_keys, live, scale, dtype);
}

template <class Archive, class Part>
void transfer_job(Archive& archive, Part& job) {
  transfer_problem(archive, job.inputs.problem);
  archive(job.pass, job.inputs.Q, job.inputs.K, job.inputs.V, job.given.forward.O, job.given.forward.L,
          job.given.saved.m, job.given.saved.l, job.given.saved.P, job.given.dO, job.layout, job.check,
          job.banks, job.schedule, job.units, job.threads, job.count_reads, job.far_apart,
          job.intermediates, job.watched, job.fewer_keys, job.traced_row, job.timed);
}

template <class Archive, class Part>
void transfer_report(Archive& archive, Part& report) {
  archive(report.failure, report.what, report.kind, report.thrown_from, report.defect, report.result.O,
          report.result.L, report.gradients.dQ, report.gradients.dK, report.gradients.dV,
          report.extra_bytes, report.bytes_kept, report.allocations, report.scores_made, report.score_reads,
          report.counted_reads, report.intermediates, report.ms, report.trace);
  auto& watched = report.watched;
  archive(watched.complete, watched.K_reads, watched.V_reads, watched.output_writes,
          watched.workspace_writes, watched.exp, watched.static_bytes, watched.stack_bytes, watched.writers,
          watched.most_written, watched.most_rows, watched.locked_accesses, watched.races, watched.race,
          watched.blocks);
  auto& ledger = report.ledger;
  for (const simt::Counters::Field& field : simt::Counters::fields()) archive(ledger.*field.member);
  archive(ledger.kernel, ledger.global, ledger.shared, ledger.shared_bytes_per_block,
          ledger.most_bytes_in_flight, ledger.most_exp_before_product, ledger.most_tiles_of_multiprocessor,
          ledger.most_registers, ledger.fewest_registers, ledger.device_bytes, ledger.banks_analysed,
          ledger.busiest);
}

}  // namespace

std::string encode(const std::vector<Job>& jobs) {
  Out out;
  out(jobs.size());
  for (const Job& job : jobs) transfer_job(out, job);
  return std::move(out.bytes);
}

std::vector<Job> decode_jobs(std::string_view bytes) {
  In in(bytes);
  std::size_t count = 0;
  in(count);
  std::vector<Job> jobs;
  for (; count > 0; --count) transfer_job(in, jobs.emplace_back());
  in.require_end();
  return jobs;
}

std::string encode(const Report& report) {
  Out out;
  transfer_report(out, report);
  return std::move(out.bytes);
}

Report decode_report(std::string_view bytes) {
  In in(bytes);
  Report report;
  transfer_report(in, report);
  in.require_end();
  return report;
}

}  // namespace flashladder::lab
