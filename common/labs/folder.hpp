#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/attention/stage.hpp"
#include "common/labs/source.hpp"

namespace flashladder::lab {

/// In the folder of a lab: which one it is.
inline constexpr const char* lab_file = "lab.json";

/// A stage as a lab.
struct Lab {
  const Stage* stage;  ///< Whose idea is left out.
  std::string file;    ///< "attention.cu" or "attention.cpp": what the student writes.
  Source source;       ///< The stage's own.
  Handout handout;     ///< Its lab.md.

  /// The stage before; nullptr where there is none.
  const Stage* before() const;
  /// The stage before's source, complete.
  std::string source_before() const;
};

/// Whether there is a lab for `stage`.
bool has_lab(const Stage& stage);
/// The lab of `stage`. Throws UsageError, naming the labs there are, where it has none, and Error where its
/// markers do not fit together.
Lab find_lab(const Stage& stage);

/// The folder of a stage, in the ladder's sources.
std::filesystem::path folder_of(const Stage& stage);

/// The source of a stage as one text. Where its kernel is in a kernel.hpp, its policy in a policy.hpp or
/// what launches them in a launch.hpp of its own, that file, from its first #include on, takes the place of
/// the line that includes it. Throws Error where there is no such line.
std::string source_of(const Stage& stage);

/// A number that changes with all that the grade of this lab depends on, as text.
std::string version_of(const Lab& lab);

/// Writes the lab's folder. Throws UsageError where something is there already, and Error where it cannot
/// be written; then nothing is left behind.
/// @param readme  the handout, complete
void write_folder(const Lab& lab, const std::string& readme, const std::filesystem::path& folder);

/// What a student hands in.
struct Submission {
  Lab lab;           ///< What it is for.
  std::string path;  ///< Of the file.
  std::string text;  ///< What is in it.
};

/// Reads the folder of a lab. Throws UsageError where it is none, or one of another version of the ladder.
Submission read_folder(const std::filesystem::path& folder);

/// A number made of all bytes of `text`.
std::uint64_t hash_of(std::string_view text);

/// The first `most` bytes of a file. Throws Error where it cannot be read.
std::string text_of(const std::filesystem::path& path, std::size_t most = SIZE_MAX);

}  // namespace flashladder::lab
