#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "common/claims/symbols.hpp"

/// What claims are written in: `BH * sum(live_i) * Br * Bc` is a number for each problem, and a text.
namespace flashladder::claims {

/// An expression that evaluates and prints itself. Each operator makes both of both: the text of a product
/// is that of its factors side by side, and its value is the product of theirs.
class Expr {
 public:
  /// How the value is found.
  using Value = std::function<std::int64_t(const Symbols&)>;
  /// What holds the text together, the loosest first: within something tighter it takes parentheses.
  enum class Bond { choice, sum, quotient, product, single };

  /// A number, from 0 on.
  Expr(std::int64_t number);
  /// What is written `text` and has this value.
  Expr(std::string text, Value value, Bond bond = Bond::single);

  /// For a problem and a tile.
  std::int64_t value(const Symbols& n) const { return value_(n); }
  /// In symbols: "BH sum(live_i) Br Bc".
  const std::string& text() const { return text_; }
  /// The text, in parentheses where it holds together less than `bond`.
  std::string text_within(Bond bond) const;

 private:
  std::string text_;
  Value value_;
  Bond bond_;
};

Expr operator+(const Expr& a, const Expr& b);  ///< "a + b"
Expr operator-(const Expr& a, const Expr& b);  ///< "a - b"
Expr operator*(const Expr& a, const Expr& b);  ///< "a b", and "4 * 2" for numbers.
Expr operator/(const Expr& a, const Expr& b);  ///< "a / b", where nothing is left over.

Expr ceil_div(const Expr& a, const Expr& b);   ///< "ceil(a / b)"
Expr floor_div(const Expr& a, const Expr& b);  ///< "floor(a / b)"
Expr min(const Expr& a, const Expr& b);        ///< "min(a, b)"
Expr max(const Expr& a, const Expr& b);        ///< "max(a, b)"

/// "a if causal, else b"
Expr if_causal(const Expr& a, const Expr& b);

/// "sum(term)": over the row tiles of a head, of each of which live_i and its like are then.
Expr sum(const Expr& term);

/// "sum_s(term)": over packed sequences, each as a problem of its own; the term itself where none are.
Expr sum_of_sequences(const Expr& term);
/// "sum_w(term)": as sum(), where the rows of a tile are the 64 of a warpgroup; of those that have rows.
Expr sum_of_warpgroups(const Expr& term);

/// The term, which is to sum up numbers of each head. Where heads have block maps of their own, live_i and
/// its like are other numbers for each: then "BH sum(live_i)" is the sum of all sum(live_i).
Expr of_each_head(const Expr& term);

/// What has a name of its own: `name`, with the value of `meaning`.
Expr named(const std::string& name, const Expr& meaning);

// The symbols, each as Symbols explains it.
inline const Expr BH = {"BH", &Symbols::BH};           ///< Query heads of all batch entries.
inline const Expr BHkv = {"BHkv", &Symbols::BHkv};     ///< Key/value heads of all batch entries.
inline const Expr Nq = {"Nq", &Symbols::Nq};           ///< Query rows.
inline const Expr Nk = {"Nk", &Symbols::Nk};           ///< Keys.
inline const Expr d = {"d", &Symbols::d};              ///< Head dimension.
inline const Expr Br = {"Br", &Symbols::Br};           ///< Rows of a tile.
inline const Expr Bc = {"Bc", &Symbols::Bc};           ///< Keys of a tile.
inline const Expr Tr = {"Tr", &Symbols::Tr};           ///< Tiles of rows, ceil(Nq / Br).
inline const Expr Tc = {"Tc", &Symbols::Tc};           ///< Tiles of keys, ceil(Nk / Bc).
inline const Expr R = {"R", &Symbols::R};              ///< Threads that hold a row of S and O.
inline const Expr D = {"D", &Symbols::D};              ///< Columns of a tile.
inline const Expr warps = {"warps", &Symbols::warps};  ///< Of a block.
inline const Expr share = {"share", &Symbols::share};  ///< Warps that share the same keys.
inline const Expr num_buffers = {"num_buffers",
                                 &Symbols::num_buffers};  ///< Buffers of each tile that is copied ahead.
inline const Expr step = {"step", &Symbols::step};        ///< Rows of a tile that a warp takes at a time.
inline const Expr warpgroups = {"warpgroups", &Symbols::warpgroups};  ///< Of a block, that multiply.
inline const Expr panels = {"panels", &Symbols::panels};     ///< Of a tile: what TMA copies at a time.
inline const Expr threads = {"threads", &Symbols::threads};  ///< Of a CPU stage.
inline const Expr pairs = {"pairs",
                           &Symbols::pairs};  ///< Queries and keys that see each other, in one head.

/// 1 where the scale is negative. @hideinitializer
inline const Expr scale_is_negative = {"[scale < 0]",
                                       [](const Symbols& n) { return n.problem.scale < 0 ? 1 : 0; }};

/// 1 where scores have a softcap. @hideinitializer
inline const Expr has_softcap = {"[softcap]",
                                 [](const Symbols& n) { return n.problem.softcap != 0 ? 1 : 0; }};

/// 1 with ALiBi. @hideinitializer
inline const Expr has_alibi = {"[alibi]", [](const Symbols& n) { return n.problem.alibi ? 1 : 0; }};

/// 1 with a bias. @hideinitializer
inline const Expr has_bias = {"[bias]", [](const Symbols& n) { return n.problem.has_bias() ? 1 : 0; }};

/// Numbers of a bias; 0 without one. @hideinitializer
inline const Expr bias_numbers = {"bias_numbers", [](const Symbols& n) {
                                    const Problem& p = n.problem;
                                    return p.bias_batch * p.bias_heads * p.bias_rows * p.Nk;
                                  }};

/// 1 with sinks. @hideinitializer
inline const Expr has_sinks = {"[sinks]", [](const Symbols& n) { return n.problem.sinks ? 1 : 0; }};

/// Packed sequences; 0 where none are. @hideinitializer
inline const Expr sequences = {"sequences", [](const Symbols& n) { return n.problem.packing.sequences; }};

/// Live tiles of all query heads.
inline const Expr live = named("live", of_each_head(BH* sum(Expr("live_i", &Symbols::live))));
/// Tiles of keys with a row that sees one of them, of all key/value heads.
inline const Expr seen = {"seen", &Symbols::seen_tiles};
inline const Expr seen_keys = {"seen_keys", &Symbols::seen_keys};  ///< Keys of those tiles.

// Of row tile i, for sum().
inline const Expr rows_i = {"rows_i", &Symbols::rows};           ///< Rows of it.
inline const Expr visible_i = {"visible_i", &Symbols::visible};  ///< Keys that some row of it sees.
inline const Expr live_i = {"live_i", &Symbols::live};  ///< Tiles of keys that some row of it sees.
inline const Expr keys_i = {"keys_i", &Symbols::keys};  ///< Keys of those tiles.
inline const Expr whole_i = {"whole_i",
                             &Symbols::whole};  ///< Tiles of keys that each row of it sees in full.

}  // namespace flashladder::claims
