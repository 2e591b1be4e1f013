#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace flashladder::lab {

/// What a lab leaves out of a stage's source: the lines between `// lab: TASK` and `// end of lab`.
struct Region {
  std::string task;  ///< What is to be written, in a sentence.
  int lines = 0;     ///< Lines of code that the reference takes, without comments.
};

/// A stage's source, told apart by its markers (docs/labs.md has their syntax).
struct Source {
  std::string reference;        ///< Complete, without the markers.
  std::string skeleton;         ///< With a TODO in the place of each region.
  std::vector<Region> regions;  ///< In order; none in a source without markers.

  /// Lines of code that the reference takes in all regions.
  int lines() const;
};

/// Reads the markers of `text`. Throws Error where they do not fit together, naming `name` and the line.
Source read_source(std::string_view text, const std::string& name);

/// The hints of a handout, lab.md, and what is left of it for the student to read.
struct Handout {
  /// What a count that is wrong says of the code.
  struct Hint {
    std::string counter;  ///< As in the claim.
    bool too_many;        ///< Else too few.
    std::string text;     ///< A sentence or two.
  };
  std::string text;         ///< Without the section "## Feedback".
  std::vector<Hint> hints;  ///< The lines `- COUNTER too many|too few: TEXT` of that section.

  /// The hint for a counter, or "".
  std::string hint(std::string_view counter, bool too_many) const;
};

/// Takes a handout apart. Throws Error where a line of its section "## Feedback" is no hint, naming `name`
/// and the line.
Handout read_handout(std::string_view text, const std::string& name);

}  // namespace flashladder::lab
