#pragma once
#include <cstddef>
#include <string_view>

namespace flashladder {

/// A part of many things: every `of`-th, from the one with number `first` on. By default all.
struct Turn {
  std::size_t first = 0;  ///< Below `of`.
  std::size_t of = 1;     ///< How many parts there are.

  /// Whether thing `i` is in it.
  bool takes(std::size_t i) const { return i % of == first; }
};

/// The second of three parts is "2/3". Throws UsageError for what is no part.
Turn parse_turn(std::string_view text);

/// That of FLASHLADDER_TURN in the environment; all where it is not set. Throws UsageError.
Turn turn_of_environment();

}  // namespace flashladder
