#pragma once
#include <filesystem>
#include <string>

#include "common/attention/stage.hpp"

namespace flashladder::lab {

// What a lab's file may be: docs/labs.md, "The rules". It is no list of bad words. The text must not have
// what would hide something from a reader or reach the insides of the ladder. What the compiler made of it
// may refer to what a stage needs and nothing else, and may keep nothing from one call to the next.

/// A lab's file, and what it is for.
struct Handed {
  const Stage& stage;       ///< What it is to define.
  std::string file;         ///< "attention.cu" or "attention.cpp".
  const std::string& text;  ///< What is in it.
};

/// Bytes that a file may have: a hundred times what a stage has.
inline constexpr std::size_t most_source_bytes = 1 << 20;

/// Why the text is not accepted, as a sentence that begins with the line; "" where it is.
std::string refused_source(const Handed& handed);

/// The same of the object file that was compiled from it.
/// @param sanitized  the compiler added checks of its own to it
std::string refused_object(const Handed& handed, const std::filesystem::path& object, bool sanitized);

}  // namespace flashladder::lab
