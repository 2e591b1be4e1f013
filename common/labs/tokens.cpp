#include "common/labs/tokens.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace flashladder::lab {
namespace {

bool begins_word(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || (c & 0x80) != 0;
}
bool continues_word(char c) {
  return begins_word(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
}
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r';
}

/// How many characters from `at` on put a line and the next together: a backslash, and a newline behind it.
/// g++ takes spaces between them for a mistake and puts the lines together all the same.
std::size_t splice(std::string_view text, std::size_t at) {
  if (text[at] != '\\') return 0;
  std::size_t end = at + 1;
  while (end < text.size() && is_space(text[end])) ++end;
  return end < text.size() && text[end] == '\n' ? end + 1 - at : 0;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
    skip_splices();
  }

  std::vector<Token> all() {
    while (!at_end()) next();
    end_line();
    return std::move(tokens_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char now() const { return at_end() ? '\n' : text_[at_]; }
  /// The character after this one.
  char then() const {
    std::size_t next = at_ + 1;
    for (std::size_t more; next < text_.size() && (more = splice(text_, next)) > 0;) next += more;
    return next < text_.size() ? text_[next] : '\n';
  }
  void skip_splices() {
    for (std::size_t more; !at_end() && (more = splice(text_, at_)) > 0; at_ += more) ++line_;
  }
  void advance() {
    if (at_end()) return;
    line_ += text_[at_] == '\n';
    ++at_;
    skip_splices();
  }
  char take() {
    const char c = now();
    advance();
    return c;
  }
  Token& add(Token::Kind kind, std::string text, int line) {
    return tokens_.emplace_back(Token{kind, std::move(text), line, in_directive_});
  }
  void end_line() {
    if (in_directive_) add(Token::Kind::end, "", line_);
    in_directive_ = false;
    line_begins_ = true;
  }
  /// Whether what comes is a file's name between < and >.
  bool names_file() const {
    static constexpr std::array<std::string_view, 4> all = {"include", "include_next", "import", "embed"};
    return in_directive_ && tokens_.size() >= 2 && tokens_[tokens_.size() - 2].is("#") &&
           std::ranges::find(all, tokens_.back().text) != all.end();
  }

  void next() {
    const char c = now();
    const int line = line_;
    if (c == '\n') {
      advance();
      end_line();
    } else if (is_space(c)) {
      advance();
    } else if (c == '/' && then() == '/') {
      while (!at_end() && now() != '\n') advance();
    } else if (c == '/' && then() == '*') {
      advance();
      advance();
      while (!at_end() && !(now() == '*' && then() == '/')) advance();
      advance();
      advance();
    } else {
      take_token(c, line);
      line_begins_ = false;
    }
  }

  void take_token(char c, int line) {
    if (begins_word(c) || c == '\\') {
      std::string word(1, take());
      while (!at_end() && (continues_word(now()) || now() == '\\')) word += take();
      if (now() == '"' || now() == '\'') {
        static constexpr std::array<std::string_view, 4> encodings = {"u8", "u", "U", "L"};
        const bool raw = now() == '"' && word.back() == 'R';
        const std::string encoding = raw ? word.substr(0, word.size() - 1) : word;
        if ((raw && encoding.empty()) || std::ranges::find(encodings, encoding) != encodings.end())
          return raw ? take_raw(line) : take_literal(line);
      }
      add(Token::Kind::word, word, line);
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0 ||
               (c == '.' && std::isdigit(static_cast<unsigned char>(then())) != 0)) {
      std::string number(1, take());
      const auto belongs = [&](char next) {
        const char last = number.back();
        const bool sign =
            (next == '+' || next == '-') && (last == 'e' || last == 'E' || last == 'p' || last == 'P');
        return sign || next == '.' || continues_word(next) || (next == '\'' && continues_word(then()));
      };
      while (!at_end() && belongs(now())) number += take();
      add(Token::Kind::number, number, line);
    } else if (c == '"' || c == '\'') {
      take_literal(line);
    } else if (c == '<' && names_file()) {
      std::string name;
      while (!at_end() && now() != '\n' && (name.empty() || name.back() != '>')) name += take();
      add(Token::Kind::literal, name, line);
    } else {
      take_mark(line);
    }
  }

  void take_literal(int line) {
    const char quote = take();
    std::string literal(1, quote);
    while (!at_end() && now() != '\n') {
      const char c = take();
      literal += c;
      if (c == quote) break;
      if (c == '\\' && now() != '\n') literal += take();
    }
    add(Token::Kind::literal, literal, line);
  }

  /// R"x(...)x": nothing in it means anything but its end, a backslash before a newline neither.
  void take_raw(int line) {
    const std::size_t open = text_.find('(', at_);
    if (open == text_.npos) return take_literal(line);
    const std::string close = ")" + std::string(text_.substr(at_ + 1, open - at_ - 1)) + "\"";
    const std::size_t end = std::min(text_.size(), text_.find(close, open));
    const std::size_t next = std::min(text_.size(), end + close.size());
    add(Token::Kind::literal, std::string(text_.substr(at_, next - at_)), line);
    line_ += static_cast<int>(std::ranges::count(text_.substr(at_, next - at_), '\n'));
    at_ = next;
    if (!at_end()) skip_splices();
  }

  void take_mark(int line) {
    std::string mark(1, take());
    if ((mark == ":" && now() == ':') || (mark == "-" && now() == '>') || (mark == "#" && now() == '#'))
      mark += take();
    if (mark == "%" && now() == ':') {  // the other spelling of # and ##
      advance();
      mark = "#";
      if (now() == '%' && then() == ':') {
        advance();
        advance();
        mark = "##";
      }
    }
    if (mark == "#" && line_begins_) in_directive_ = true;
    add(Token::Kind::mark, mark, line);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true, in_directive_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) {
  return Lexer(text).all();
}

}  // namespace flashladder::lab
