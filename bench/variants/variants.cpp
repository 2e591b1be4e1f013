// Variants of a stage of kernels, each compiled into a library of its own by bench/variants/variants.py:
// all are checked on small problems, and on a GPU those that are right are timed on large ones, in turns,
// on the same tensors. Prints JSON.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measure/gpu_pace.hpp"
#include "common/attention/workspace.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"
#include "common/check/run.hpp"
#include "common/ptx/stamp.hpp"

namespace flashladder {
namespace {

using nlohmann::ordered_json;

/// A library, the stage in it, and where its kernels take stamps, take_stamps() of common/ptx/stamp.hpp.
struct Variant {
  std::string path;
  const Stage* stage;
  const char* (*take_stamps)(Stamped*);

  /// The pass that is meant: forward, or backward where it has no other.
  Pass pass() const { return stage->has(Pass::forward) ? Pass::forward : Pass::backward; }
};

/// Throws Error where the library cannot be loaded or holds no stage.
Variant load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // kept until the program ends
  if (library == nullptr) throw Error(std::string("a variant cannot be loaded: ") + dlerror());
  using Get = const Stage*();
  const auto get = reinterpret_cast<Get*>(dlsym(library, "flashladder_variant"));
  if (get == nullptr) throw Error(path + " holds no variant: bench/variants/variants.py makes them");
  return {path, get(),
          reinterpret_cast<const char* (*)(Stamped*)>(dlsym(library, "flashladder_take_stamps"))};
}

Problem problem_of(const ordered_json& json) {
  Problem p;
  p.batch = json.at("batch");
  p.q_heads = p.kv_heads = json.at("heads");
  p.Nq = json.at("Nq");
  p.Nk = json.at("Nk");
  p.d = json.at("d");
  p.causal = json.at("causal");
  p.dtype = parse_dtype(json.at("dtype").get<std::string>());
  return p;
}

/// What a pass is checked with: forward, or where the stage has no forward pass backward.
class Expectation {
 public:
  Expectation(const Inputs& inputs, Pass pass) : inputs_(inputs) {
    const Dtype dtype = inputs.problem.dtype;
    if (pass == Pass::backward) {
      saved_ = saved_forward(inputs);
      dO_ = random_output_gradient(inputs.problem, 1);
      gradients_ = expect_backward(inputs, saved_, dO_, dtype);
    } else {
      forward_ = expect_forward(inputs, dtype);
    }
  }

  /// What is wrong with a variant, "" where it is right.
  std::string wrong(const Variant& variant) const {
    try {
      const Verdict verdict =
          variant.pass() == Pass::backward
              ? run_and_check_backward(*variant.stage, inputs_, saved_, dO_, Layout::padded, gradients_)
              : run_and_check(*variant.stage, inputs_, Layout::padded, forward_);
      return verdict.why;
    } catch (const Error& error) {  // such as more shared memory than the GPU has
      return error.what();
    }
  }

 private:
  const Inputs& inputs_;
  Expected forward_;
  Result<float> saved_;
  std::vector<float> dO_;
  ExpectedGradients gradients_;
};

/// A problem with inputs of one family, and what is right for it.
struct Case {
  std::string name;
  Inputs inputs;
  Expectation expected;

  Case(const Family& family, const Problem& p, Pass pass)
      : name(to_string(p) + ", " + std::string(family.name)),
        inputs(make_inputs(family, p, 1)),
        expected(inputs, pass) {}
};

/// What is wrong with each variant on these problems with inputs of all families; "" where nothing is.
std::vector<std::string> all_wrong(const std::vector<Variant>& variants, const ordered_json& problems) {
  std::vector<std::string> wrong(variants.size());
  if (variants.empty()) return wrong;
  const Pass pass = variants.front().pass();
  std::vector<std::future<std::unique_ptr<Case>>> cases;  // what is right takes longer than the variants
  for (const ordered_json& one : problems) {
    for (const Family& family : input_families())
      cases.push_back(std::async(std::launch::async, [&family, p = problem_of(one), pass] {
        return std::make_unique<Case>(family, p, pass);
      }));
  }
  for (auto& made : cases) {
    const std::unique_ptr<Case> one = made.get();
    for (std::size_t i = 0; i < variants.size(); ++i) {
      if (!wrong[i].empty()) continue;
      const std::string why = one->expected.wrong(variants[i]);
      if (!why.empty()) wrong[i] = one->name + ": " + why;
    }
  }
  return wrong;
}

/// Memory on the GPU for `elements` 16-bit numbers, of random values that come again.
std::unique_ptr<BackendMemory> random_memory(std::int64_t elements, Dtype dtype, std::uint64_t seed) {
  Problem p;
  p.dtype = dtype;
  p.Nq = p.Nk = (1 << 20) / p.d;
  const std::vector<float> values = random_inputs(p, seed).Q;
  std::vector<std::byte> bytes(values.size() * 2);
  for (std::size_t i = 0; i < values.size(); ++i) store_as(dtype, values[i], &bytes[2 * i]);
  auto memory = std::make_unique<BackendMemory>(Backend::cuda, 2 * elements);
  const auto piece = static_cast<std::int64_t>(bytes.size());
  for (std::int64_t at = 0; at < memory->bytes(); at += piece)
    memory->upload(at, bytes.data(), std::min(piece, memory->bytes() - at));
  return memory;
}

/// The tensors of a pass on the GPU, but for L, large enough for all problems with so many elements in
/// each.
struct Tensors {
  Dtype dtype;
  std::int64_t elements;
  Pass pass;
  std::map<std::string_view, std::unique_ptr<BackendMemory>> memory;

  Tensors(Dtype dtype, std::int64_t elements, Pass pass) : dtype(dtype), elements(elements), pass(pass) {
    std::uint64_t seed = 0;
    for (const NamedTensor& one : all_tensors) {
      if (one.given(pass, Saved::L, {}) && one.has_head_rows())
        memory[one.name] = random_memory(elements, dtype, ++seed);
    }
  }

  /// A Forward or a Backward of them.
  template <class Call>
  Call call(const Problem& p, const BackendMemory& L, Workspace& workspace) const {
    Call call{.problem = p, .workspace = workspace};
    for (const NamedTensor& one : all_tensors) {
      if (one.given(Call::pass, Saved::L, p))
        one.of(call) = one.contiguous(p, one.has_head_rows() ? memory.at(one.name)->data() : L.data());
    }
    return call;
  }
};

/// How often each variant runs on a problem, and what comes before each run.
struct Runs {
  int rounds = 7;
  bool rested = false;  ///< A rest of the GPU; else they follow each other closely.
};

/// Stamps by warp, in order of time; the clocks are those since the first of all.
using Stamps = std::map<unsigned, std::vector<Stamped>>;

/// The stamps of what `run` launches.
template <class Run>
Stamps stamps_of(const Variant& variant, Run run) {
  std::vector<Stamped> all(std::size_t{stamp_warps} * stamp_slots);
  const auto take = [&] {
    if (const char* why = variant.take_stamps(all.data()); why != nullptr)
      throw Error(std::string("the stamps could not be read from the GPU: ") + why);
  };
  take();  // those of earlier runs
  run(variant);
  take();
  Stamps stamps;
  for (unsigned warp = 0; warp < stamp_warps; ++warp) {
    for (unsigned slot = 0; slot < stamp_slots; ++slot) {
      const Stamped& one = all[warp * stamp_slots + slot];
      if (one.what != Stamp::none) stamps[warp].push_back(one);
    }
  }
  if (stamps.empty()) throw Error("no warp has stamped anything");
  // The clock may pass 2^32 - 1: earlier is what is less than half of that before.
  const auto earlier = [](const Stamped& one, const Stamped& other) {
    return static_cast<std::int32_t>(one.clock - other.clock) < 0;
  };
  Stamped first = stamps.begin()->second.front();
  for (auto& [warp, own] : stamps) {
    std::ranges::sort(own, earlier);
    first = std::min(first, own.front(), earlier);
  }
  for (auto& [warp, own] : stamps) {
    for (Stamped& one : own) one.clock -= first.clock;
  }
  return stamps;
}

/// By warp [what, clock] of each stamp.
ordered_json to_json(const Stamps& stamps) {
  constexpr std::array names = {"",       "mbarrier_arrive", "mbarrier_wait", "load",
                                "commit", "wait_groups",     "barrier",       "barrier_arrive",
                                "fence",  "goes_on"};  // of Stamp, in order
  ordered_json warps = ordered_json::object();
  for (const auto& [warp, own] : stamps) {
    for (const Stamped& one : own)
      warps[std::to_string(warp)].push_back({names.at(static_cast<std::size_t>(one.what)), one.clock});
  }
  return warps;
}

/// Of one variant on one problem.
struct Timed {
  std::vector<double> ms;  ///< Of each run.
  Stamps stamps;           ///< Of one more; empty where the variant takes none.
};

/// All runs of each variant on `p`, a run of each in turn.
/// @param tensors  is kept from call to call: making random numbers takes longer than the runs
std::vector<Timed> times(const std::vector<Variant>& variants, const Problem& p, const Runs& runs,
                         std::unique_ptr<Tensors>& tensors) {
  const std::int64_t elements = p.batch * p.q_heads * std::max(p.Nq, p.Nk) * p.d;
  const Pass pass = variants.front().pass();
  if (tensors == nullptr || tensors->dtype != p.dtype || tensors->elements < elements ||
      tensors->pass != pass)
    tensors = std::make_unique<Tensors>(p.dtype, elements, pass);
  BackendMemory L(Backend::cuda, p.batch * p.q_heads * p.Nq * 4);
  const std::vector<float> near(p.batch * p.q_heads * p.Nq, std::log(static_cast<float>(p.Nk)));
  L.upload(0, reinterpret_cast<const std::byte*>(near.data()), L.bytes());  // P is then about 1 / Nk
  Workspace workspace(free_memory(Backend::cuda));
  const auto run = [&](const Variant& variant) {
    if (variant.pass() == Pass::backward) {
      run_backward(*variant.stage, tensors->call<Backward>(p, L, workspace));
    } else {
      run_forward(*variant.stage, tensors->call<Forward>(p, L, workspace));
    }
  };
  const auto rest = [&] {
#ifdef FLASHLADDER_HAS_CUDA
    if (runs.rested) rest_on_gpu();
#endif
  };
  for (const Variant& variant : variants) run(variant);  // the first run loads the code
  synchronise(Backend::cuda);
  std::vector<Timed> timed(variants.size());
  GpuTimer timer;
  for (int round = 0; round < runs.rounds; ++round) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      rest();
      timer.start();
      run(variants[i]);
      timed[i].ms.push_back(timer.stop());
    }
  }
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].take_stamps != nullptr)
      timed[i].stamps = stamps_of(variants[i], [&](const Variant& variant) {
        rest();
        run(variant);
      });
  }
  return timed;
}

/// {"check": [problem ...], "time": [problem ...]} for the libraries: for each whether it is right, and the
/// milliseconds of those that are.
ordered_json measure(const ordered_json& task, const std::vector<Variant>& all, const Runs& runs,
                     std::unique_ptr<Tensors>& tensors) {
  ordered_json result = ordered_json::object();
  if (std::ranges::any_of(all, [&](const Variant& one) { return one.pass() != all[0].pass(); }))
    throw Error("variants of a forward and of a backward pass cannot be compared");
  const std::vector<std::string> wrong = all_wrong(all, task.at("check"));
  std::vector<Variant> right;
  for (std::size_t i = 0; i < all.size(); ++i) {
    result[all[i].path] = {{"wrong", wrong[i]}, {"ms", ordered_json::array()}};
    if (wrong[i].empty()) right.push_back(all[i]);
  }
  for (const ordered_json& one : task.at("time")) {
    if (right.empty()) break;
    const auto timed = times(right, problem_of(one), runs, tensors);
    for (std::size_t i = 0; i < right.size(); ++i) {
      ordered_json& of = result[right[i].path];
      of["ms"].push_back(timed[i].ms);
      if (!timed[i].stamps.empty()) of["stamps"].push_back(to_json(timed[i].stamps));
    }
  }
  return result;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Checks and times variants of a stage that bench/variants/variants.py has compiled; prints JSON.");
  std::string tasks_path;
  Runs runs;
  app.add_option("tasks", tasks_path,
                 "JSON: an array of {libraries, check, time}; see bench/variants/variants.py")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--rounds", runs.rounds, "runs of each variant and problem")->check(CLI::Range(1, 1000));
  app.add_flag("--rested", runs.rested, "before each run the GPU has nothing to do for 10 ms");
  CLI11_PARSE(app, argc, argv);
  const ordered_json tasks = ordered_json::parse(std::ifstream(tasks_path));
  std::unique_ptr<Tensors> tensors;
  ordered_json results = ordered_json::array();
  for (const ordered_json& task : tasks) {
    std::vector<Variant> variants;
    for (const std::string path : task.at("libraries")) variants.push_back(load(path));
    results.push_back(measure(task, variants, runs, tensors));
    std::fprintf(stderr, "  %zu of %zu\n", results.size(), tasks.size());
  }
  std::puts(results.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace flashladder

int main(int argc, char** argv) {
  try {
    return flashladder::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashladder_variants: %s\n", error.what());
    return 1;
  }
}
