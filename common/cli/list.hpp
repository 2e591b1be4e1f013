#pragma once
#include <string>

namespace flashladder {

/// The ladder as a table for the terminal.
std::string list_text();
/// The ladder as JSON: an array of {number, name, title, idea, claim, before, dtypes, head_dims, backend,
/// forward, backward}.
std::string list_json();
/// The ladder as the Markdown table of stages/README.md.
/// @param prefix  of the links to the stages' folders, "../stages/" or ""
std::string list_markdown(const std::string& prefix);

}  // namespace flashladder
