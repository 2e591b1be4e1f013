#include "common/check/turn.hpp"

#include <charconv>
#include <cstdlib>
#include <string>

#include "common/error.hpp"

namespace flashladder {
namespace {

/// The number that is all of `text`; 0 where it is none.
std::size_t number_of(std::string_view text) {
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? number : 0;
}

}  // namespace

Turn parse_turn(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::size_t part = number_of(text.substr(0, slash)),
                    of = slash == text.npos ? 0 : number_of(text.substr(slash + 1));
  if (part < 1 || part > of) {
    throw UsageError(
        "'" + std::string(text) +
        "' is no turn: give a part and the number of parts, such as 2/3 for the second of three");
  }
  return {.first = part - 1, .of = of};
}

Turn turn_of_environment() {
  const char* text = std::getenv("FLASHLADDER_TURN");
  return text == nullptr ? Turn() : parse_turn(text);
}

}  // namespace flashladder
