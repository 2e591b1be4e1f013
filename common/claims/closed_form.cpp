#include "common/claims/closed_form.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "common/attention/stage.hpp"
#include "common/claims/cpu_claim.hpp"

namespace flashladder {
namespace {

/// All claims of a kind of stage, each after that of the stage before, which has a lower number.
std::map<int, Claim> kernel_claims() {
  std::map<int, Claim> all;
  for (const Stage* stage : stages()) {
    if (stage->backend == Backend::cpu) continue;
    Claim claim = own_claim(*stage);
    const auto take_tile_of = [&](const Claim& before) {
      if (claim.tile_for != nullptr || claim.tile != ClaimedTile()) return;
      claim.tile = before.tile;
      claim.tile_for = before.tile_for;
      if (claim.backward_tile_for == nullptr) claim.backward_tile_for = before.backward_tile_for;
    };
    if (claim.forward.as_before) {
      const Claim& before = all.at(stage->before);
      claim.forward = claim.forward.after(before.forward);
      take_tile_of(before);
      claim.whole_sectors_of_O |= before.whole_sectors_of_O;
    }
    if (claim.backward.as_before) {
      const Claim& before = all.at(backward_before(*stage)->number);
      claim.backward = claim.backward.after(before.backward);
      if (!stage->has(Pass::forward)) take_tile_of(before);
    }
    all.emplace(stage->number, std::move(claim));
  }
  return all;
}

std::map<int, CpuClaim> cpu_claims() {
  std::map<int, CpuClaim> all;
  for (const Stage* stage : stages()) {
    if (stage->backend != Backend::cpu) continue;
    CpuClaim claim = own_cpu_claim(*stage);
    if (claim.forward.as_before) claim.forward = claim.forward.after(all.at(stage->before).forward);
    all.emplace(stage->number, std::move(claim));
  }
  return all;
}

}  // namespace

const Claim* claim_of(const Stage& stage) {
  static const std::map<int, Claim> all = kernel_claims();
  const auto found = all.find(stage.number);
  return found == all.end() ? nullptr : &found->second;
}

const CpuClaim* cpu_claim_of(const Stage& stage) {
  static const std::map<int, CpuClaim> all = cpu_claims();
  const auto found = all.find(stage.number);
  return found == all.end() ? nullptr : &found->second;
}

bool adds_in_any_order(const Stage& stage, const Problem& problem) {
  const Claim* claim = claim_of(stage);
  if (claim == nullptr || claim->same_sums) return false;
  return std::ranges::any_of(std::array{"atomics", "bulk_reduces"}, [&](const char* counter) {
    const ClosedForm* form = claim->backward.find(counter);
    return form != nullptr && form->value(claim->symbols(problem, Pass::backward)) > 0;
  });
}

std::int64_t count_of(const simt::Ledger& ledger, std::string_view name) {
  constexpr std::string_view elements = "_elements";
  std::string wanted(name);
  std::int64_t unit = 1;
  if (name.ends_with(elements)) {
    wanted.resize(name.size() - elements.size());
    wanted += "_bytes";
    unit = 4;
    for (const auto& [buffer, traffic] : ledger.global) {
      if (name.starts_with("global." + buffer + "."))
        unit = static_cast<std::int64_t>(traffic.element_bytes);
    }
  }
  for (const auto& [entry, count] : ledger.entries()) {
    if (entry == wanted) return static_cast<std::int64_t>(count) / unit;
  }
  return 0;
}

}  // namespace flashladder
