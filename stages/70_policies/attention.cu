// Policies: what is special to a kind of attention, which keys a row sees and what becomes of a score,
// moves out of the kernel into a policy, a struct that the kernel is compiled with. With the policy of
// plain attention the compiler makes of it what it makes of stage 29.
#include "common/kernel/host.hpp"
#include "stages/70_policies/policy.hpp"

#include "stages/70_policies/kernel.hpp"
#include "stages/70_policies/launch.hpp"

namespace flashladder::stage_70 {
namespace {

void forward(const Forward& f) {
  for_row<table>(f.problem, [&](auto chosen) {
    constexpr Row row = chosen;
    forward_with(f, chosen, Plain<row.causal>());
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 70,
    .name = "policies",
    .title = "policies",
    .idea =
        "which keys a row sees and what becomes of a score are a policy, a struct that the kernel is "
        "compiled with",
    .claim = "all forms are stage 29's: with the policy of plain attention nothing is counted more or less",
    .before = 29,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .forward = forward,
};

}  // namespace flashladder::stage_70
