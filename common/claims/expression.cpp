#include "common/claims/expression.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

namespace flashladder::claims {

using Bond = Expr::Bond;

Expr::Expr(std::int64_t number)
    : Expr(std::to_string(number), [number](const Symbols&) { return number; }) {}

Expr::Expr(std::string text, Value value, Bond bond)
    : text_(std::move(text)), value_(std::move(value)), bond_(bond) {}

std::string Expr::text_within(Bond bond) const {
  return bond_ < bond ? "(" + text_ + ")" : text_;
}

Expr operator+(const Expr& a, const Expr& b) {
  return {a.text_within(Bond::sum) + " + " + b.text_within(Bond::sum),
          [a, b](const Symbols& n) { return a.value(n) + b.value(n); }, Bond::sum};
}

Expr operator-(const Expr& a, const Expr& b) {
  return {a.text_within(Bond::sum) + " - " + b.text_within(Bond::quotient),
          [a, b](const Symbols& n) { return a.value(n) - b.value(n); }, Bond::sum};
}

Expr operator*(const Expr& a, const Expr& b) {
  const std::string right = b.text_within(Bond::product);
  const bool number = std::isdigit(static_cast<unsigned char>(right.front())) != 0;  // "BH 2" is no product
  return {a.text_within(Bond::product) + (number ? " * " : " ") + right,
          [a, b](const Symbols& n) { return a.value(n) * b.value(n); }, Bond::product};
}

Expr operator/(const Expr& a, const Expr& b) {
  return {a.text_within(Bond::product) + " / " + b.text_within(Bond::single),
          [a, b](const Symbols& n) { return a.value(n) / b.value(n); }, Bond::quotient};
}

Expr ceil_div(const Expr& a, const Expr& b) {
  return {"ceil(" + (a / b).text() + ")",
          [a, b](const Symbols& n) { return (a.value(n) + b.value(n) - 1) / b.value(n); }};
}

Expr floor_div(const Expr& a, const Expr& b) {
  return {"floor(" + (a / b).text() + ")", [a, b](const Symbols& n) { return a.value(n) / b.value(n); }};
}

Expr min(const Expr& a, const Expr& b) {
  return {"min(" + a.text() + ", " + b.text() + ")",
          [a, b](const Symbols& n) { return std::min(a.value(n), b.value(n)); }};
}

Expr max(const Expr& a, const Expr& b) {
  return {"max(" + a.text() + ", " + b.text() + ")",
          [a, b](const Symbols& n) { return std::max(a.value(n), b.value(n)); }};
}

Expr if_causal(const Expr& a, const Expr& b) {
  return {a.text() + " if causal, else " + b.text(),
          [a, b](const Symbols& n) { return (n.problem.causal ? a : b).value(n); }, Bond::choice};
}

Expr sum(const Expr& term) {
  return {"sum(" + term.text() + ")", [term](Symbols n) {
            std::int64_t total = 0;
            for (n.i = 0; n.i < n.Tr; ++n.i) total += term.value(n);
            return total;
          }};
}

Expr sum_of_warpgroups(const Expr& term) {
  return {"sum_w(" + term.text() + ")", [all = sum(term)](const Symbols& n) {
            ClaimedTile tile = n;
            tile.Br = 64;
            return all.value({n.problem, tile});
          }};
}

Expr sum_of_sequences(const Expr& term) {
  return {"sum_s(" + term.text() + ")", [term](const Symbols& n) {
            std::int64_t total = 0;
            for (const Problem& one : n.problem.all_sequences()) total += term.value(Symbols(one, n));
            return total;
          }};
}

Expr of_each_head(const Expr& term) {
  return {term.text(), [term](const Symbols& n) {
            const BlockMap& map = n.problem.block_map;
            if (!map.given()) return term.value(n);
            // What does not depend on the map, and of each head by how much it is more or less.
            Problem without = n.problem;
            without.block_map = {};
            std::int64_t total = term.value(Symbols(without, n));
            without.batch = without.q_heads = without.kv_heads = 1;
            const std::int64_t of_head = term.value(Symbols(without, n));
            Problem one = without;
            for (std::int64_t b = 0; b < n.problem.batch; ++b) {
              for (std::int64_t h = 0; h < n.problem.q_heads; ++h) {
                one.block_map = map.of(b, h);
                total += term.value(Symbols(one, n)) - of_head;
              }
            }
            return total;
          }};
}

Expr named(const std::string& name, const Expr& meaning) {
  return {name, [meaning](const Symbols& n) { return meaning.value(n); }};
}

}  // namespace flashladder::claims
