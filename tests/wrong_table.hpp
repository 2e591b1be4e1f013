#pragma once
// What the tests of wrong outputs and of wrong gradients have in common: the problems that they try, and
// the table of which family of inputs caught which mistake.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"

namespace flashladder {

/// What mistakes are tried on.
struct Tried {
  bool causal_only = false;
  std::int64_t least_N = 16;

  bool on(const Problem& p) const { return (p.causal || !causal_only) && p.Nk >= least_N; }
};

/// Grouped heads, and of N rows the last ones, which see the most keys: the hardest.
inline Problem last_rows(std::int64_t N, bool causal, Dtype dtype) {
  Problem p;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.Nk = N;
  p.Nq = std::min<std::int64_t>(N, 32);
  p.d = 16;
  p.causal = causal;
  p.dtype = dtype;
  return p;
}

/// Prints a table, and writes it to the file that FLASHLADDER_TABLE names, after those of the same run.
inline void write_table(const std::string& what, const std::string& table) {
  std::printf("%s:\n%s", what.c_str(), table.c_str());
  static bool begun = false;
  if (const char* path = std::getenv("FLASHLADDER_TABLE")) {
    std::ofstream file(path, begun ? std::ios::app : std::ios::trunc);
    file << (begun ? "\n" : "") << table;
    begun = true;
  }
}

/// Which of the wrong outputs that the judge knows it cannot tell, for each family, dtype and length, with
/// and without a mask.
class Sensitivity {
 public:
  explicit Sensitivity(std::span<const std::int64_t> lengths) : lengths_(lengths) {}

  void add(const Family& family, const Problem& p, const Bound& bound) {
    for (const Wrong& wrong : bound.wrongs) {
      ++of_all_;
      if (!wrong.can_be_told()) unseen_[{family.name, p.dtype, p.Nk}].insert(wrong.what);
      CHECK((wrong.can_be_told() || !wrong.needed));
    }
  }

  /// A row for each family and dtype, a column for each length.
  std::string table() const {
    CHECK(of_all_ > 0);
    std::string table = "| inputs | dtype |", rule = "\n|---|---|";
    for (std::int64_t N : lengths_) {
      table += " N = " + std::to_string(N) + " |";
      rule += "---|";
    }
    table += rule + "\n";
    for (const Family& family : input_families()) {
      for (Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
        table += "| " + std::string(family.name) + " | " + std::string(to_string(dtype)) + " |";
        for (std::int64_t N : lengths_) {
          const auto unseen = unseen_.find({family.name, dtype, N});
          std::string cell = " all";
          if (unseen != unseen_.end()) {
            cell = " not ";
            for (const std::string& what : unseen->second)
              cell += (what == *unseen->second.begin() ? "" : ", ") + what;
          }
          table += cell + " |";
        }
        table += "\n";
      }
    }
    return table;
  }

 private:
  std::span<const std::int64_t> lengths_;
  std::map<std::tuple<std::string_view, Dtype, std::int64_t>, std::set<std::string>> unseen_;
  int of_all_ = 0;
};

/// Requires that the right result passes on all families of inputs that are no blind ones, and that each
/// mistake fails on at least one, at every length, with both masks, in fp32 and in bf16. Writes the table.
/// @param what        its heading: "wrong output"
/// @param make_judge  makes a judge of some inputs: judge(nullptr) is the verdict on the right result,
///                    judge(&mistake) that on a wrong one
template <class Mistakes, class MakeJudge>
void require_all_caught(const std::string& what, const Mistakes& mistakes,
                        std::span<const std::int64_t> lengths, MakeJudge make_judge) {
  // caught[mistake][family]: of how many (length, mask, dtype) it was caught, by dtype.
  std::map<std::string, std::map<std::string_view, std::map<Dtype, int>>> caught;
  std::map<std::string_view, std::map<Dtype, int>> judging;  // how many of them were no blind ones
  std::map<std::string, int> tried;
  for (std::int64_t N : lengths) {
    for (bool causal : {false, true}) {
      for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
        const Problem p = last_rows(N, causal, dtype);
        INFO(to_string(p));
        std::map<std::string, std::string> caught_by;
        for (const Family& family : input_families()) {
          const Inputs inputs = make_inputs(family, p, 100 + N);
          const auto judge = make_judge(inputs);
          INFO(family.name);
          const Verdict right = judge(nullptr);
          INFO(right.why);
          REQUIRE((right.passed || right.blind));
          judging[family.name][dtype] += right.passed ? 1 : 0;
          for (const auto& mistake : mistakes) {
            if (!mistake.tried.on(p)) continue;
            const Verdict wrong = judge(&mistake);
            if (wrong.passed || wrong.blind) continue;
            caught_by[mistake.name] += std::string(family.name) + " ";
            ++caught[mistake.name][family.name][dtype];
          }
        }
        for (const auto& mistake : mistakes) {
          if (!mistake.tried.on(p)) continue;
          ++tried[mistake.name];
          INFO(mistake.name << " was caught by: " << caught_by[mistake.name]);
          CHECK_FALSE(caught_by[mistake.name].empty());
        }
      }
    }
  }

  std::string table = "| " + what + " | tried |";
  std::string rule = "\n|---|---|";
  for (const Family& family : input_families()) {
    table += " " + std::string(family.name) + " |";
    rule += "---|";
  }
  table += rule + "\n";
  const auto add_row = [&](const std::string& name, int tried_in_each, auto& by_family) {
    const std::string each = std::to_string(tried_in_each);
    table += "| " + name + " | " + each + " + " + each + " |";
    for (const Family& family : input_families()) {
      auto& by_dtype = by_family[family.name];
      table += " " + std::to_string(by_dtype[Dtype::fp32]) + " + " + std::to_string(by_dtype[Dtype::bf16]) +
               " |";
    }
    table += "\n";
  };
  for (const auto& mistake : mistakes) add_row(mistake.name, tried[mistake.name] / 2, caught[mistake.name]);
  add_row("*the right one passes*", 2 * static_cast<int>(lengths.size()), judging);
  write_table("Caught in fp32 + in bf16, over the lengths and masks tried", table);
}

}  // namespace flashladder
