#include "common/cli/input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "common/attention/workspace.hpp"
#include "common/check/inputs.hpp"
#include "common/error.hpp"
#include "common/io/npz.hpp"

namespace flashladder {
namespace {

const std::filesystem::path shipped =
    std::filesystem::path(FLASHLADDER_SOURCE_DIR) / "common/data/minilm_layer.npz";

/// All of `text` as a number.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// What stands between the marks.
std::vector<std::string> split(const std::string& text, char mark) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == mark)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// Documents of these lengths in the rows and keys of a problem; of one length, as many as it takes, and
/// the last is shorter.
Packing documents(const Problem& problem, std::vector<std::int64_t> lengths) {
  if (problem.Nq != problem.Nk) {
    throw UsageError(fmt::format(
        "--variant documents: {} rows and {} keys: documents have as many rows as keys, so leave --key-len "
        "out",
        problem.Nq, problem.Nk));
  }
  if (lengths.size() == 1) {
    const std::int64_t each = std::min(lengths[0], problem.Nq);
    lengths.assign(problem.Nq / each, each);
    if (problem.Nq % each != 0) lengths.push_back(problem.Nq % each);
  }
  std::vector<int> begins = {0};
  std::int64_t end = 0;
  for (const std::int64_t length : lengths) {
    end += std::min(length, std::numeric_limits<std::int64_t>::max() - end);
    begins.push_back(static_cast<int>(std::min(end, problem.Nq)));
  }
  if (end != problem.Nq) {
    throw UsageError(
        fmt::format("--variant documents: the documents have {} rows and the input has {}: their lengths "
                    "must add up to that",
                    end, problem.Nq));
  }
  return Packing::of(begins, begins);
}

/// Puts what --variant says, "window:256,softcap:30,sinks", into a problem.
void set_variant(Problem& problem, const std::string& variant) {
  if (variant.empty()) return;
  std::set<std::string> given;
  for (const std::string& part : split(variant, ',')) {
    const std::vector<std::string> words = split(part, ':');
    const auto fail = [&](const char* how) {
      throw UsageError(fmt::format("--variant {}: '{}' is not understood: {}", variant, part, how));
    };
    if (!given.insert(words[0]).second) fail("each variant can be given once");
    if (words[0] == "window") {
      const auto left = number_in<std::int64_t>(words.size() > 1 ? words[1] : "");
      const auto right = words.size() > 2 ? number_in<std::int64_t>(words[2]) : left;
      if (words.size() > 3 || !left || !right)
        fail("give window:KEYS or window:LEFT:RIGHT, whole numbers of keys, such as window:256");
      problem.window = {*left, *right};
    } else if (words[0] == "softcap") {
      const auto cap = number_in<float>(words.size() > 1 ? words[1] : "");
      if (words.size() > 2 || !cap) fail("give softcap:LIMIT, a number, such as softcap:30");
      problem.softcap = *cap;
    } else if (words[0] == "prefix") {
      const auto keys = number_in<std::int64_t>(words.size() > 1 ? words[1] : "");
      if (words.size() > 2 || !keys) fail("give prefix:KEYS, a whole number of keys, such as prefix:128");
      problem.prefix = *keys;
    } else if (words[0] == "dropout") {
      const auto share = number_in<float>(words.size() > 1 ? words[1] : "");
      const auto seed = number_in<std::uint64_t>(words.size() > 2 ? words[2] : "0");
      if (words.size() > 3 || !share || !seed)
        fail("give dropout:SHARE or dropout:SHARE:SEED, a number and a whole number, such as dropout:0.1");
      problem.dropout = {*share, *seed};
    } else if (words[0] == "documents") {
      std::vector<std::int64_t> lengths;
      for (std::size_t i = 1; i < words.size(); ++i)
        lengths.push_back(number_in<std::int64_t>(words[i]).value_or(-1));
      if (lengths.empty() || std::ranges::min(lengths) < 0 || (lengths.size() == 1 && lengths[0] == 0))
        fail(
            "give documents:LENGTH, all of so many rows, or documents:LENGTH:LENGTH..., of each its own, "
            "whole numbers, such as documents:256");
      problem.packing = documents(problem, lengths);
    } else if (words[0] == "bias") {
      std::int64_t sizes[] = {1, problem.q_heads, problem.Nq};
      bool given = words.size() == 1 || words.size() == 4;
      for (std::size_t i = 1; given && i < words.size(); ++i) {
        const auto size = number_in<std::int64_t>(words[i]);
        given = size && *size > 0;
        if (given) sizes[i - 1] = *size;
      }
      if (!given) {
        fail(
            "give bias, one of the batch's, or bias:BATCH:HEADS:ROWS, whole numbers, 1 where all share it, "
            "such as bias:1:1:1 for one number a key");
      }
      problem.bias_batch = sizes[0], problem.bias_heads = sizes[1], problem.bias_rows = sizes[2];
    } else if (words[0] == "blocks") {
      const auto share = number_in<double>(words.size() > 1 ? words[1] : "");
      const auto seed = number_in<std::uint64_t>(words.size() > 2 ? words[2] : "0");
      if (words.size() > 3 || !share || !(*share >= 0 && *share <= 1) || !seed)
        fail(
            "give blocks:SHARE or blocks:SHARE:SEED, the share of blocks of 128 rows and keys that stay, "
            "from 0 to 1, and a whole number, such as blocks:0.25");
      problem.block_map = random_block_map(problem, problem.batch, problem.q_heads, *share, *seed);
    } else if (part == "alibi") {
      problem.alibi = true;
    } else if (part == "sinks") {
      problem.sinks = true;
    } else {
      fail(
          "the variants are window:KEYS, softcap:LIMIT, prefix:KEYS, dropout:SHARE, documents:LENGTH, "
          "blocks:SHARE, alibi, bias and sinks, such as window:256,softcap:30");
    }
  }
}

/// Throws Error where inputs and oracle of a problem do not fit into memory.
void require_memory(const Problem& p) {
  const auto elements = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  const double bytes =
      4 * (elements(2, p.batch, p.q_heads, p.Nq, p.d) + elements(2, p.batch, p.kv_heads, p.Nk, p.d) +
           elements(p.bias_batch, p.bias_heads, p.bias_rows, p.Nk));
  // The inputs, the oracle in fp64 and a stage's own copy: about five times the tensors themselves.
  if (5 * bytes > static_cast<double>(Workspace::available_memory())) {
    throw Error(
        fmt::format("{} needs about {:.1f} GiB for inputs and oracle, more than is free: use smaller sizes",
                    to_string(p), 5 * bytes / 0x1p30));
  }
}

/// "B,H,N,d" as four numbers.
Problem parse_random(const InputOptions& options) {
  Problem p;
  std::int64_t sizes[4];
  std::size_t at = 0;
  for (int i = 0; i < 4; ++i) {
    const std::size_t comma = options.random.find(',', at);
    const std::string part = options.random.substr(at, comma - at);
    std::size_t used = 0;
    try {
      sizes[i] = std::stoll(part, &used);
    } catch (const std::exception&) {
      used = std::string::npos;
    }
    if (used != part.size() || (comma == std::string::npos) != (i == 3)) {
      throw UsageError(
          fmt::format("--random {}: give four whole numbers B,H,N,d, such as 1,8,1024,64", options.random));
    }
    at = comma + 1;
  }
  p.batch = sizes[0];
  p.q_heads = sizes[1];
  p.Nq = sizes[2];
  p.d = sizes[3];
  p.kv_heads = options.kv_heads.value_or(p.q_heads);
  p.Nk = options.key_len.value_or(p.Nq);
  return p;
}

/// [batch, heads, rows, d] of an array of 2, 3 or 4 dimensions; the missing ones in front are 1.
std::array<std::int64_t, 4> shape4(const Array& array, const std::string& name) {
  const std::size_t rank = array.shape.size();
  if (rank < 2 || rank > 4) {
    throw Error(fmt::format("{} has shape {}: give [batch, heads, rows, d], [heads, rows, d] or [rows, d]",
                            name, to_string(array.shape)));
  }
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1};
  std::copy(array.shape.begin(), array.shape.end(), shape.begin() + (4 - rank));
  return shape;
}

/// The problem that arrays Q, K and V make, with a sentence for each way in which they do not fit together.
Inputs assemble(Array Q, Array K, Array V, const std::string& source) {
  const auto q = shape4(Q, source + ": q"), k = shape4(K, source + ": k");
  const auto fail = [&](const std::string& why) {
    throw Error(fmt::format("{}: q {}, k {} and v {} do not fit together: {}", source, to_string(Q.shape),
                            to_string(K.shape), to_string(V.shape), why));
  };
  if (Q.shape.size() != K.shape.size()) fail("they must have the same number of dimensions");
  if (K.shape != V.shape) fail("k and v must have the same shape");
  if (q[0] != k[0]) fail("the batch sizes differ");
  if (q[3] != k[3]) fail("the head dimensions differ");
  Problem p;
  p.batch = q[0];
  p.q_heads = q[1];
  p.kv_heads = k[1];
  p.Nq = q[2];
  p.Nk = k[2];
  p.d = q[3];
  try {
    p.validate();
  } catch (const UsageError& error) {  // the file is wrong, not the command
    throw Error(fmt::format("{}: {}", source, error.what()));
  }
  return {p, std::move(Q.values), std::move(K.values), std::move(V.values)};
}

const Array& member(const std::map<std::string, Array>& arrays, const char* lower, const char* upper,
                    const std::string& path) {
  for (const char* name : {lower, upper}) {
    if (const auto found = arrays.find(name); found != arrays.end()) return found->second;
  }
  std::string names;
  for (const auto& [name, array] : arrays) names += (names.empty() ? "" : ", ") + name;
  throw Error(
      fmt::format("{} has no array '{}' (it has: {}): save it with np.savez(file, q=..., k=..., v=...)",
                  path, lower, names.empty() ? "none" : names));
}

}  // namespace

LoadedInputs load_inputs(const InputOptions& options) {
  const bool files = !options.q.empty() || !options.k.empty() || !options.v.empty();
  if (!options.npz.empty() + files + !options.random.empty() > 1) {
    throw UsageError("give one of --input, --q --k --v, and --random, not several");
  }
  if (files && (options.q.empty() || options.k.empty() || options.v.empty())) {
    throw UsageError("--q, --k and --v go together: name a file for each");
  }
  if (options.random.empty() && (options.kv_heads || options.key_len || options.seed)) {
    throw UsageError(
        "--kv-heads, --key-len and --seed go with --random: a file has its own sizes and values");
  }
  const Dtype dtype = parse_dtype(options.dtype);

  LoadedInputs loaded;
  if (!options.random.empty()) {
    Problem problem = parse_random(options);
    problem.causal = options.causal;
    problem.scale = options.scale;
    problem.dtype = dtype;
    problem.validate();  // a variant counts on sizes that can be
    require_memory(problem);
    set_variant(problem, options.variant);
    problem.validate();
    require_memory(problem);
    return {random_inputs(problem, options.seed.value_or(1)),
            fmt::format("random, seed {}", options.seed.value_or(1))};
  }
  if (files) {
    loaded.source = fmt::format("{}, {}, {}", options.q, options.k, options.v);
    loaded.inputs = assemble(read_npy(options.q), read_npy(options.k), read_npy(options.v), loaded.source);
  } else {
    const std::string path = options.npz.empty() ? shipped.string() : options.npz;
    const auto arrays = read_npz(path, {"q", "k", "v", "Q", "K", "V"});
    loaded.source = options.npz.empty() ? "a real model's layer (all-MiniLM-L6-v2, layer 0)" : path;
    const Array &q = member(arrays, "q", "Q", path), &k = member(arrays, "k", "K", path),
                &v = member(arrays, "v", "V", path);
    loaded.inputs = assemble(q, k, v, path);
  }
  Problem& problem = loaded.inputs.problem;
  problem.causal = options.causal;
  problem.scale = options.scale;
  set_variant(problem, options.variant);
  problem.validate();
  require_memory(problem);
  round_inputs(loaded.inputs, dtype, options.npz.empty() && !files ? shipped.string() : loaded.source,
               options.allow_nonfinite);
  fill_variant(loaded.inputs, 1);
  return loaded;
}

void round_inputs(Inputs& inputs, Dtype dtype, const std::string& source, bool allow_nonfinite) {
  Problem& problem = inputs.problem;
  problem.dtype = dtype;
  const struct {
    const char* name;
    std::vector<float>& values;
    std::int64_t heads, rows;
  } tensors[] = {{"q", inputs.Q, problem.q_heads, problem.Nq},
                 {"k", inputs.K, problem.kv_heads, problem.Nk},
                 {"v", inputs.V, problem.kv_heads, problem.Nk}};
  for (const auto& [name, values, heads, rows] : tensors) {
    for (std::size_t at = 0; at < values.size(); ++at) {
      const float given = values[at];
      values[at] = round_to(dtype, given);
      if (std::isfinite(values[at])) continue;
      const auto index = static_cast<std::int64_t>(at);
      const std::string place =
          fmt::format("{}: {}[{}, {}, {}, {}] is {}", source, name, index / problem.d / rows / heads,
                      index / problem.d / rows % heads, index / problem.d % rows, index % problem.d, given);
      if (std::isfinite(given)) {
        throw Error(fmt::format("{}, too large for {}: use {}", place, to_string(dtype),
                                dtype == Dtype::fp16 ? "--dtype fp32 or bf16" : "smaller values"));
      }
      if (!allow_nonfinite) {
        throw Error(fmt::format("{}: mend the data, or go on with --allow-nonfinite", place));
      }
    }
  }
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string place_of(std::size_t text) {
  return fmt::format("@{}@", text);
}

std::string json_text(const nlohmann::ordered_json& json, const std::vector<std::string>& texts) {
  std::string text = json_text(json);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string place = '"' + place_of(i) + '"';
    if (const std::size_t at = text.find(place); at != text.npos) text.replace(at, place.size(), texts[i]);
  }
  return text;
}

nlohmann::ordered_json to_json(const LoadedInputs& loaded) {
  const Problem& problem = loaded.inputs.problem;
  return {{"source", loaded.source},
          {"problem", to_string(problem)},
          {"batch", problem.batch},
          {"q_heads", problem.q_heads},
          {"kv_heads", problem.kv_heads},
          {"Nq", problem.Nq},
          {"Nk", problem.Nk},
          {"d", problem.d},
          {"causal", problem.causal},
          {"window", {problem.window.left, problem.window.right}},
          {"softcap", problem.softcap},
          {"prefix", problem.prefix},
          {"alibi", problem.alibi},
          {"bias", {problem.bias_batch, problem.bias_heads, problem.bias_rows}},
          {"sinks", problem.sinks},
          {"dropout", problem.dropout.p},
          {"cu_seqlens_q", problem.packing.cu_seqlens_q},
          {"cu_seqlens_k", problem.packing.cu_seqlens_k},
          {"live_blocks", std::ranges::count(problem.block_map.live, 1)},
          {"dtype", to_string(problem.dtype)},
          {"scale", problem.softmax_scale()}};
}

}  // namespace flashladder
