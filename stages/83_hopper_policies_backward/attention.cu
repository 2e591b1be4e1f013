// Policies on Hopper, backward: the kernel of stage 61 asks the policy that the other variants' kernel
// asks. The kernel of a call's variants is compiled when it is first asked for.
#include "common/kernel/host.hpp"
#include "stages/72_sliding_window/policy.hpp"
#include "stages/73_prefix/policy.hpp"
#include "stages/74_documents/policy.hpp"
#include "stages/75_softcap/policy.hpp"
#include "stages/76_bias/policy.hpp"
#include "stages/77_sinks/policy.hpp"
#include "stages/78_dropout/policy.hpp"
#include "stages/79_block_map/policy.hpp"
#include "stages/80_together/policy.hpp"
#include "stages/81_on_demand/policy.hpp"

#include "stages/71_policies_backward/kernel.hpp"
#include "stages/72_sliding_window/launch.hpp"
#include "stages/73_prefix/launch.hpp"
#include "stages/74_documents/launch.hpp"
#include "stages/75_softcap/launch.hpp"
#include "stages/76_bias/launch.hpp"
#include "stages/77_sinks/launch.hpp"
#include "stages/78_dropout/launch.hpp"
#include "stages/79_block_map/launch.hpp"
#include "stages/81_on_demand/variants.hpp"
#include "stages/83_hopper_policies_backward/kernel.hpp"
#include "stages/83_hopper_policies_backward/launch.hpp"
#ifdef __CUDACC__
#include "stages/81_on_demand/kernels.hpp"
#else
#include "stages/82_hopper_policies/variants.hpp"
#endif

namespace flashladder::stage_83 {
namespace {

using stage_70::Plain;

/// Calls `body` with a number of the type that the tensors have, and the columns of the tiles.
template <class Body>
void for_tile(const Backward& f, Body body) {
  for_half_dtype(f.problem.dtype, [&]<class T>(T number) {
    for_head_dim<T, 64, 128>(f.problem.d, [&](auto d) { body(number, d); });
  });
}

#ifdef __CUDACC__
/// Starts the kernel of a policy, compiled on demand; without a compiler that of the first stage of
/// variants that takes the call.
void start_compiled(const Backward& f, const stage_81::AnyPolicy& policy) {
  if (!stage_81::can_compile(83, "stages 71 to 80")) return stage_81::compiled_before(f).backward(f);
  stage_76::clear_gradient(f);
  for_tile(f, [&]<class T>(T, auto d) {
    static stage_81::Kernels kernels;
    const auto source = [&] {
      return stage_81::source_of("stages/83_hopper_policies_backward/kernel.hpp",
                                 "stage_83::wgmma_backward", dtype_of<T>, policy, int{d});
    };
    start<T, d>(f, kernels.of(policy, source), policy);
  });
}
template <class Policy>
void start_any(const Backward& f, const Policy& policy) {
  start_compiled(f, stage_81::AnyPolicy(policy));
}
#else
/// Starts a kernel of the emulator, which has no compiler at hand.
void start_compiled(const Backward& f, const auto& policy) {
  stage_76::clear_gradient(f);
  for_tile(f, [&]<class T>(T, auto d) {
    start<T, d>(f, wgmma_backward<T, std::decay_t<decltype(policy)>, d>, policy);
  });
}

/// It has these kernels, compiled with the program, and for all other calls one of all variants, as in
/// stage 80.
template <class Policy>
constexpr bool is_compiled = false;
template <bool causal>
constexpr bool is_compiled<Plain<causal>> = true;
template <>
constexpr bool is_compiled<stage_74::Documents<Plain<true>>> = true;
template <>
constexpr bool is_compiled<stage_73::Prefix<Plain<true>>> = true;
template <>
constexpr bool is_compiled<stage_78::Dropout<Plain<false>>> = true;

void start_of_all(const Backward& f) {
  stage_82::with_all(f, [&](const auto& all) { start_compiled(f, all); });
}

template <class Policy>
void start_any(const Backward& f, const Policy& policy) {
  if constexpr (is_compiled<Policy>) return start_compiled(f, policy);
  start_of_all(f);
}
#endif

void backward(const Backward& f) {
  stage_74::require_all_used(f.problem);
  stage_81::with_policy<>(f, [&](const auto& policy) { start_any(f, policy); });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 83,
    .name = "hopper_policies_backward",
    .title = "policies on Hopper, backward",
    .idea =
        "Hopper's fastest backward kernel asks a policy, too; P^T is rounded first, and the slope of the "
        "scores then takes its registers",
    .claim =
        "a window, a prefix, packed sequences and plain attention take the tiles that their masks have; "
        "plain attention as many bytes, products and exponentials as in stage 61",
    .before = 61,
    .supports = {.dtypes = half_dtypes,
                 .head_dims = multiples_of_8_up_to<128>,
                 .features = {.window = true,
                              .softcap = true,
                              .prefix = true,
                              .alibi = true,
                              .bias = true,
                              .sinks = true,
                              .dropout = true,
                              .packing = true}},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .backward = backward,
};

}  // namespace flashladder::stage_83
