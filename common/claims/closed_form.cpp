#include "common/claims/closed_form.hpp"

#include <algorithm>

namespace flashladder {

Symbols::Symbols(const Problem& p, std::int64_t rows, std::int64_t keys)
    : problem(p),
      BH(p.batch * p.q_heads),
      BHkv(p.batch * p.kv_heads),
      Nq(p.Nq),
      Nk(p.Nk),
      d(p.d),
      Br(rows),
      Bc(keys),
      Tr((p.Nq + rows - 1) / rows),
      Tc((p.Nk + keys - 1) / keys) {}

std::int64_t Symbols::live(std::int64_t i) const {
  const std::int64_t last_row = std::min((i + 1) * Br, Nq) - 1;
  return (problem.visible_keys(last_row) + Bc - 1) / Bc;
}

std::int64_t Symbols::masked(std::int64_t i) const {
  const std::int64_t whole = problem.visible_keys(i * Br) / Bc;  // tiles that the first row sees in full
  return std::max<std::int64_t>(live(i) - whole, 0);
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
