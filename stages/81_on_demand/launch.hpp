#pragma once
// How stage 81 starts kernels on a GPU that are compiled when they are first asked for.
#include "stages/70_policies/launch.hpp"
#include "stages/71_policies_backward/launch.hpp"
#include "stages/81_on_demand/kernels.hpp"
#include "stages/81_on_demand/policy.hpp"

namespace flashladder::stage_81 {
namespace {

/// As stage_70::forward_with.
template <class Chosen>
void forward_with(const Forward& f, Chosen chosen, const AnyPolicy& policy) {
  constexpr stage_70::Row row = chosen;
  constexpr auto tile = row.tile;
  using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
  static Kernels kernels;
  const LoadedKernel kernel = kernels.of(policy, [&] {
    return source_of("stages/70_policies/kernel.hpp", "stage_70::fa2_forward", row.dtype, policy, row.d,
                     tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.unroll);
  });
  stage_70::start<T>(f, row, kernel, stage_70::Shared<row.d, tile.Br, tile.Bc, tile.num_buffers>::bytes,
                     policy);
}

/// As stage_71::backward_with.
template <class Chosen, class More>
void backward_with(const Backward& f, Chosen chosen, const AnyPolicy& policy, More more) {
  constexpr stage_71::Row row = chosen;
  constexpr auto tile = row.tile;
  using T = std::conditional_t<row.dtype == Dtype::fp16, f16, bf16>;
  static Kernels kernels;
  const LoadedKernel kernel = kernels.of(policy, [&] {
    return source_of("stages/71_policies_backward/kernel.hpp", "stage_71::fa2_backward", row.dtype, policy,
                     row.d, tile.Br, tile.Bc, tile.warps, tile.num_buffers, tile.share, tile.step,
                     tile.unroll);
  });
  stage_71::start<T, row.d>(f, row, kernel,
                            stage_71::Shared<row.d, tile.Br, tile.Bc, tile.num_buffers, tile.share>::bytes,
                            policy, more);
}

}  // namespace
}  // namespace flashladder::stage_81
