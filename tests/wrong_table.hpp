#pragma once
// What the tests of wrong outputs and of wrong gradients have in common: the problems that they try, and
// the table of which family of inputs caught which mistake.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include "catch.hpp"
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
inline void write_table(const std::string& table) {
  std::printf("Caught in fp32 + in bf16, over the lengths and masks tried:\n%s", table.c_str());
  static bool begun = false;
  if (const char* path = std::getenv("FLASHLADDER_TABLE")) {
    std::ofstream file(path, begun ? std::ios::app : std::ios::trunc);
    file << (begun ? "\n" : "") << table;
    begun = true;
  }
}

/// Requires that the right result passes on all families of inputs, and that of each mistake at least one
/// does not, at every length, with both masks, in fp32 and in bf16. Writes the table.
/// @param what        its heading: "wrong output"
/// @param make_judge  makes a judge of some inputs: judge(nullptr) says whether the right result passes,
///                    judge(&mistake) whether a wrong one does
template <class Mistakes, class MakeJudge>
void require_all_caught(const std::string& what, const Mistakes& mistakes,
                        std::span<const std::int64_t> lengths, MakeJudge make_judge) {
  // caught[mistake][family]: of how many (length, mask, dtype) it was caught, by dtype.
  std::map<std::string, std::map<std::string_view, std::map<Dtype, int>>> caught;
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
          REQUIRE(judge(nullptr));
          for (const auto& mistake : mistakes) {
            if (!mistake.tried.on(p) || judge(&mistake)) continue;
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
  for (const auto& mistake : mistakes) {
    const std::string half = std::to_string(tried[mistake.name] / 2);
    table += "| " + mistake.name + " | " + half + " + " + half + " |";
    for (const Family& family : input_families()) {
      auto& by_dtype = caught[mistake.name][family.name];
      table += " " + std::to_string(by_dtype[Dtype::fp32]) + " + " + std::to_string(by_dtype[Dtype::bf16]) +
               " |";
    }
    table += "\n";
  }
  write_table(table);
}

}  // namespace flashladder
