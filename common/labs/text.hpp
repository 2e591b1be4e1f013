#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace flashladder::lab {

/// `text` in lines no longer than `width`, with `indentation` before each; its own line breaks and their
/// indentation are kept.
std::string wrapped(const std::string& text, const std::string& indentation, std::size_t width);

/// The first `most` lines of `text`, and "..." where there are more.
std::string first_lines(const std::string& text, int most);

/// "S, m and l"; "" of none.
std::string listed(const std::vector<std::string>& names);

/// "columns 32 to 63", "head 1", "rows 3, 5, 9 and more"; "" where it is all `count` of them.
/// @param what  a single one of them: "column"
std::string numbers_in_words(const char* what, const std::set<std::int64_t>& numbers, std::int64_t count);

}  // namespace flashladder::lab
