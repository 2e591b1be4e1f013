// Policies on Hopper: the kernel of stage 51, wgmma, TMA and a warpgroup that brings, asks the policy that
// the other variants' kernel asks. The kernel of a call's variants is compiled when it is first asked for.
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

#include "stages/72_sliding_window/launch.hpp"
#include "stages/73_prefix/launch.hpp"
#include "stages/74_documents/launch.hpp"
#include "stages/75_softcap/launch.hpp"
#include "stages/76_bias/launch.hpp"
#include "stages/77_sinks/launch.hpp"
#include "stages/78_dropout/launch.hpp"
#include "stages/79_block_map/launch.hpp"
#include "stages/81_on_demand/variants.hpp"
#include "stages/82_hopper_policies/kernel.hpp"
#include "stages/82_hopper_policies/launch.hpp"
#ifdef __CUDACC__
#include "stages/81_on_demand/kernels.hpp"
#else
#include "stages/82_hopper_policies/variants.hpp"
#endif

namespace flashladder::stage_82 {
namespace {

using stage_70::Plain;

/// Calls `body` with a number of the type that the tensors have, the columns of the tiles and the
/// warpgroups that multiply.
template <class Body>
void for_tile(const Forward& f, Body body) {
  const auto call = [&](auto number, auto d, auto warpgroups) {
    if (warpgroups == warpgroups_for(d, f.problem.dropout.p != 0)) body(number, d, warpgroups);
  };
  for_half_dtype(f.problem.dtype, [&]<class T>(T number) {
    for_head_dim<T, 64, 128>(f.problem.d, [&](auto d) {
      call(number, d, std::integral_constant<int, 3>());
      if constexpr (d == 64) call(number, d, std::integral_constant<int, 4>());
    });
  });
}

#ifdef __CUDACC__
/// Starts the kernel of a policy, compiled on demand; without a compiler that of the first stage of
/// variants that takes the call.
void start_compiled(const Forward& f, const stage_81::AnyPolicy& policy) {
  if (!stage_81::can_compile(82, "stages 70 to 80")) return stage_81::compiled_before(f).forward(f);
  for_tile(f, [&]<class T>(T, auto d, auto warpgroups) {
    static stage_81::Kernels kernels;
    const auto source = [&] {
      return stage_81::source_of("stages/82_hopper_policies/kernel.hpp", "stage_82::wgmma_forward",
                                 dtype_of<T>, policy, int{d}, int{warpgroups});
    };
    start<T, d, warpgroups>(f, kernels.of(policy, source), policy);
  });
}
template <class Policy>
void start_any(const Forward& f, const Policy& policy) {
  start_compiled(f, stage_81::AnyPolicy(policy));
}
#else
/// Starts a kernel of the emulator, which has no compiler at hand.
void start_compiled(const Forward& f, const auto& policy) {
  for_tile(f, [&]<class T>(T, auto d, auto warpgroups) {
    start<T, d, warpgroups>(f, wgmma_forward<T, std::decay_t<decltype(policy)>, d, warpgroups>, policy);
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
constexpr bool is_compiled<stage_74::Documents<stage_73::Prefix<Plain<true>>>> = true;
template <>
constexpr bool is_compiled<stage_77::Sinks<stage_78::Dropout<Plain<false>>>> = true;

void start_of_all(const Forward& f) {
  stage_82::with_all(f, [&](const auto& all) {
    stage_77::with_sinks(f, all, [&](const auto& policy) { start_compiled(f, policy); });
  });
}

template <class Policy>
void start_any(const Forward& f, const Policy& policy) {
  if constexpr (is_compiled<Policy>) return start_compiled(f, policy);
  start_of_all(f);
}
#endif

void forward(const Forward& f) {
  stage_81::with_policy<stage_81::OfSinks>(f, [&](const auto& policy) { start_any(f, policy); });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 82,
    .name = "hopper_policies",
    .title = "policies on Hopper",
    .idea =
        "Hopper's fastest kernel asks a policy, too; TMA brings zeros for the rows behind the end of a "
        "packed sequence",
    .claim =
        "a window, a prefix, packed sequences and plain attention take the tiles that their masks have; "
        "plain attention of 64 or 128 columns as many bytes, products and exponentials as in stage 51",
    .before = 51,
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
    .forward = forward,
};

}  // namespace flashladder::stage_82
