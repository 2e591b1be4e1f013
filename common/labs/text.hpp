#pragma once
#include <cstddef>
#include <string>

namespace flashladder::lab {

/// `text` in lines no longer than `width`, with `indentation` before each; its own line breaks and their
/// indentation are kept.
std::string wrapped(const std::string& text, const std::string& indentation, std::size_t width);

/// The first `most` lines of `text`, and "..." where there are more.
std::string first_lines(const std::string& text, int most);

}  // namespace flashladder::lab
