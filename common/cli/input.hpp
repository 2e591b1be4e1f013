#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/oracle.hpp"

namespace flashladder {

/// Where the inputs of a run come from, as the command line says it.
struct InputOptions {
  std::string npz;                                ///< --input
  std::string q, k, v;                            ///< --q --k --v
  std::string random;                             ///< --random B,H,N,d
  std::optional<std::uint64_t> seed;              ///< With --random only; 1 unless given.
  std::optional<std::int64_t> kv_heads, key_len;  ///< With --random only.
  std::string dtype = "fp32";
  bool causal = false;
  float scale = 0;      ///< 0: 1/sqrt(d)
  std::string variant;  ///< --variant window:256,softcap:30
  bool allow_nonfinite = false;
};

/// Inputs with the words that name their source in tables and reports.
struct LoadedInputs {
  Inputs inputs;
  std::string source;
};

/// Reads or makes Q, K and V. Throws Error for files that cannot be used and UsageError for options that do
/// not fit together, each naming what, where and how to correct it.
LoadedInputs load_inputs(const InputOptions& options);

/// Rounds Q, K and V to `dtype`. Throws Error, naming the element, where one of `source` is too large for
/// it, or, unless that is allowed, NaN or Inf.
void round_inputs(Inputs& inputs, Dtype dtype, const std::string& source, bool allow_nonfinite);

/// A document as indented text. Where a name in it is not UTF-8, U+FFFD stands for what is wrong.
std::string json_text(const nlohmann::ordered_json& json);

/// As json_text, where a value that is place_of(i) stands for texts[i], which is JSON already and stays in
/// one line: a trace has millions of numbers.
std::string json_text(const nlohmann::ordered_json& json, const std::vector<std::string>& texts);
/// Stands for a text in a document.
std::string place_of(std::size_t text);

/// Where they come from and what problem they make.
nlohmann::ordered_json to_json(const LoadedInputs& loaded);

}  // namespace flashladder
