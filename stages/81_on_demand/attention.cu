// On demand: the variants that a call asks for, and no others, make a type, and the kernel of that type is
// compiled when it is first asked for. What a call does not ask for costs nothing.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/73_prefix/policy.hpp"
#include "stages/74_documents/policy.hpp"
#include "stages/75_softcap/policy.hpp"
#include "stages/76_bias/policy.hpp"
#include "stages/77_sinks/policy.hpp"
#include "stages/78_dropout/policy.hpp"
#include "stages/79_block_map/policy.hpp"
#include "stages/81_on_demand/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/kernel.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/73_prefix/launch.hpp"
#include "stages/74_documents/launch.hpp"
#include "stages/75_softcap/launch.hpp"
#include "stages/76_bias/launch.hpp"
#include "stages/77_sinks/launch.hpp"
#include "stages/78_dropout/launch.hpp"
#include "stages/79_block_map/launch.hpp"
#include "stages/81_on_demand/variants.hpp"
#ifdef __CUDACC__
#include "stages/81_on_demand/launch.hpp"
#endif

namespace flashladder::stage_81 {
namespace {

using stage_70::forward_with, stage_70::Plain, stage_71::backward_with;

/// Starts the kernels of a policy, on a GPU of one that was compiled on demand.
template <class Policy>
void start(const Forward& f, const Policy& policy) {
  for_masked_row_of<stage_70::table, 64, 128, 256>(f.problem,
                                                   [&](auto chosen) { forward_with(f, chosen, policy); });
}
template <class Policy>
void start(const Backward& f, const Policy& policy) {
  stage_76::clear_gradient(f);
  for_masked_row_of<stage_71::table, 64, 128, 256>(
      f.problem, [&](auto chosen) { backward_with(f, chosen, policy, stage_77::SinkGradient{f}); });
}

#ifdef __CUDACC__
/// Starts them, if there is a compiler for them.
template <class Call, class Policy>
bool starts(const Call& f, const Policy& policy) {
  if (!can_compile(81, "stage 80")) return false;
  start(f, AnyPolicy(policy));
  return true;
}
#else
/// The emulator has some of these types only, compiled with the program: those of packed sequences with a
/// softcap, and of a block map with dropout under the causal mask, forward with sinks, too.
template <class Policy>
constexpr bool is_compiled = false;
template <bool causal>
constexpr bool is_compiled<stage_74::Documents<stage_75::Softcap<Plain<causal>>>> = true;
template <>
constexpr bool is_compiled<stage_79::LiveBlocks<stage_78::Dropout<Plain<true>>>> = true;
template <>
constexpr bool is_compiled<stage_77::Sinks<stage_79::LiveBlocks<stage_78::Dropout<Plain<true>>>>> = true;

/// Starts them, if there are any.
template <class Call, class Policy>
bool starts(const Call& f, const Policy& policy) {
  if constexpr (is_compiled<Policy>) start(f, policy);
  return is_compiled<Policy>;
}
#endif

/// Where there is no kernel for its variants alone a call has that for all variants.
const Stage& together() {
  static const Stage& stage_80 = on_backend(find_stage(80), kernel_backend);
  return stage_80;
}

void forward(const Forward& f) {
  with_policy<OfSinks>(f, [&](const auto& policy) {
    if (!starts(f, policy)) together().forward(f);
  });
}

void backward(const Backward& f) {
  stage_74::require_all_used(f.problem);
  with_policy<>(f, [&](const auto& policy) {
    if (!starts(f, policy)) together().backward(f);
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 81,
    .name = "on_demand",
    .title = "on demand",
    .idea =
        "the variants that a call asks for, and no others, make a type, and the kernel of that type is "
        "compiled when it is first asked for",
    .claim =
        "packed sequences with a softcap, or a block map with dropout under the causal mask, take the "
        "operations of these variants, and none for the others",
    .before = 80,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8,
                 .features = {.window = true,
                              .softcap = true,
                              .prefix = true,
                              .alibi = true,
                              .bias = true,
                              .sinks = true,
                              .dropout = true,
                              .packing = true,
                              .block_map = true}},
    .backend = kernel_backend,
    .forward = forward,
    .backward = backward,
};

}  // namespace flashladder::stage_81
