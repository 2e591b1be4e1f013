#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace flashladder::lab {

/// A word of a C++ source as its compiler reads it: without comments, with lines put together that end in a
/// backslash.
struct Token {
  /// What it is.
  enum class Kind {
    word,     ///< A name or a keyword.
    number,   ///< A number.
    literal,  ///< A string, a character, or what #include names; with its quotes.
    mark,     ///< One of the other characters, or one of :: -> ##
    end,      ///< The end of a directive's line; it has no text.
  };
  Kind kind;          ///< What it is.
  std::string text;   ///< Its characters.
  int line;           ///< Where it begins, from 1.
  bool in_directive;  ///< Whether it belongs to a line that begins with #.

  /// Whether it is the word or mark `what`.
  bool is(std::string_view what) const { return kind != Kind::literal && text == what; }
};

/// All of them, in their order.
std::vector<Token> tokens_of(std::string_view text);

}  // namespace flashladder::lab
