#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/backend.hpp"
#include "common/attention/tensor.hpp"

namespace flashladder {

/// What a stage takes or does not. The defaults are what a stage takes that says nothing; one that takes
/// less, or more, says so: `.features = {.strides = false}`. All lengths must be taken: no feature.
struct Features {
  bool causal = true;         ///< The causal mask.
  bool grouped_heads = true;  ///< Fewer key/value heads than query heads.
  bool strides = true;        ///< Tensors whose heads and rows do not follow each other in memory.
  bool window = false;        ///< A window of keys around a row's own.
  bool softcap = false;       ///< Scores below a limit, by tanh.
  bool prefix = false;        ///< Keys that all rows see, beside the causal mask.
  bool alibi = false;         ///< Scores that fall with the distance.
  bool bias = false;          ///< Numbers that are added to the scores.
  bool sinks = false;         ///< A score of each head beside those of its keys.
  bool dropout = false;       ///< Probabilities left out by chance.
  bool packing = false;       ///< Sequences that follow each other in the rows and keys.
  bool block_map = false;     ///< Blocks of rows and keys that are left out.
};

/// A feature, and which problems ask for it.
struct Feature {
  const char* name;                       ///< For lists and messages: "a stage takes no ...".
  bool Features::*taken;                  ///< Its member of Features.
  bool (*asked)(const Problem& problem);  ///< Null where it is the tensors that ask.
};

/// One for each member of Features. @hideinitializer
inline constexpr Feature all_features[] = {
    {"causal mask", &Features::causal, [](const Problem& p) { return p.causal; }},
    {"grouped heads", &Features::grouped_heads, [](const Problem& p) { return p.kv_heads != p.q_heads; }},
    {"strides", &Features::strides, nullptr},
    {"window", &Features::window, [](const Problem& p) { return p.window.hides(p.causal); }},
    {"softcap", &Features::softcap, [](const Problem& p) { return p.softcap != 0; }},
    {"prefix", &Features::prefix, [](const Problem& p) { return p.prefix > 0; }},
    {"alibi", &Features::alibi, [](const Problem& p) { return p.alibi; }},
    {"bias", &Features::bias, [](const Problem& p) { return p.has_bias(); }},
    {"sinks", &Features::sinks, [](const Problem& p) { return p.sinks; }},
    {"dropout", &Features::dropout, [](const Problem& p) { return p.dropout.p != 0; }},
    {"packed sequences", &Features::packing, [](const Problem& p) { return p.packing.sequences > 0; }},
    {"block map", &Features::block_map, [](const Problem& p) { return p.block_map.given(); }},
};

/// What a stage takes.
struct Support {
  std::span<const Dtype> dtypes;  ///< Element types it computes in; others are widened to fp32 for it.
  std::span<const std::int64_t> head_dims = {};  ///< Head dimensions; empty: any up to max_head_dim.
  Features features = {};                        ///< Masks, heads, layouts.

  /// Whether it takes head dimension d.
  bool head_dim(std::int64_t d) const;
  /// Whether it computes in `dtype`.
  bool dtype(Dtype dtype) const;
  /// The head dimensions in words: "32, 64 and 128", "any up to 256", "any multiple of 8 up to 256".
  std::string head_dims_in_words() const;
  /// The features that a problem asks for and that it does not take, "no causal mask and no grouped heads";
  /// "" where there are none.
  std::string missing(const Problem& problem) const;
  /// Whether it takes the head dimension and the features of a problem.
  bool takes(const Problem& problem) const { return head_dim(problem.d) && missing(problem).empty(); }
};

inline constexpr Dtype fp32_only[] = {Dtype::fp32};

/// Which GPUs take the kernels of a stage. The emulator stands for all of them.
enum class Gpu {
  any,     ///< All that the build is for.
  hopper,  ///< Compute capability 9.0 alone: no other GPU has wgmma, and it is compiled for 90a.
};

/// One rung of the ladder. Each folder stages/NN_name defines one; lists, tests, charts and tables follow
/// from it.
struct Stage {
  int number;                ///< NN of its folder. stages/README.md says which track it is of.
  std::string_view name;     ///< The folder's name is NN_name.
  std::string_view title;    ///< For charts: a word or two.
  std::string_view idea;     ///< One line.
  std::string_view claim;    ///< The number that a test proves, one line.
  int before;                ///< The stage it is measured against; its own number where there is none.
  int before_backward = -1;  ///< The same of its backward pass; -1: the nearest before it that has one.
  Support supports;          ///< Dtypes, head dimensions, features.
  Backend backend = Backend::cpu;  ///< What it is compiled for.
  Gpu gpu = Gpu::any;              ///< On which GPUs it runs.

  /// Computes O and L; null where the stage has a backward pass only.
  void (*forward)(const Forward&) = nullptr;
  /// The same code over an element type that counts how often a score is read; null where the stage has
  /// none.
  void (*forward_counting)(const Forward&) = nullptr;
  /// Computes dQ, dK and dV; null where the stage has no backward pass.
  void (*backward)(const Backward&) = nullptr;
  Saved saved = Saved::L;  ///< What its backward pass is given of the forward pass beside O.

  /// Whether it has this pass.
  bool has(Pass pass) const { return pass == Pass::forward ? forward != nullptr : backward != nullptr; }
};

/// The dtype `stage` computes in when the input is of `dtype`: the same where it supports it, else fp32, to
/// which every 16-bit value widens exactly.
Dtype computing_dtype(const Stage& stage, Dtype dtype);

/// Throws UsageError, naming what is supported, unless `stage` takes `problem`.
void require_supported(const Stage& stage, const Problem& problem);

/// Why a GPU does not take the kernels of `stage`, in one sentence that says what does; "" where it does.
/// `architecture` is the GPU's, as gpu_architecture() has it; `name` is asked for the sentence alone.
std::string wrong_gpu(const Stage& stage, int architecture, std::string (*name)());

/// One forward pass of `stage`; on a GPU it may still run when this returns. Throws UsageError as
/// require_supported and where the stage has none, and Error as wrong_gpu, before anything is launched; and
/// Error, naming the stage, where the GPU does not take what is launched.
void run_forward(const Stage& stage, const Forward& forward);

/// The same for its backward pass. Throws UsageError, too, where what the stage says it needs of the
/// forward pass is not given.
void run_backward(const Stage& stage, const Backward& backward);

/// The stage that the backward pass of `stage` is measured against: the nearest before it that has one;
/// nullptr where there is none.
const Stage* backward_before(const Stage& stage);

/// All stages of this build, in order of their numbers; those of kernels as compiled for the emulator.
std::span<const Stage* const> stages();

/// The stages of kernels as compiled for a GPU; none in a build without CUDA, and in one for other GPUs
/// than Hopper those that need it are missing.
std::span<const Stage* const> cuda_stages();

/// Those of cuda_stages() that the current GPU takes; none without one.
std::vector<const Stage*> gpu_stages();

/// Empty where `stage` can run on `backend` here; else one sentence that says what is missing (as
/// unavailable(Backend), a GPU that its kernels need, code for that GPU) and what to do.
std::string unavailable(const Stage& stage, Backend backend);

/// `stage` as compiled for `backend`; a CPU stage is itself whatever is asked for. Throws Error, as
/// unavailable says it, where it cannot run there.
const Stage& on_backend(const Stage& stage, Backend backend);

/// Stage `number`. Throws UsageError naming the stages there are.
const Stage& find_stage(int number);

/// The stages that a selection such as "00-02", "1,2", "tensor_cores" or "00,02-15" names, in order: each
/// by its number, its name or its folder. Throws UsageError where it names a stage that does not exist.
std::vector<const Stage*> select_stages(std::string_view selection);

/// "02"
std::string number_text(const Stage& stage);

/// "00-02, 10, 11": the numbers of stages that are in order; three or more without a gap between them are a
/// range, as select_stages reads it.
std::string numbers_text(std::span<const Stage* const> some);

/// "02_tiled_cpu", in stages/.
std::string folder_name(const Stage& stage);

/// "02 tiled_cpu"
std::string label(const Stage& stage);

}  // namespace flashladder
