#pragma once
#include <filesystem>

namespace flashladder {

/// Makes the folder and proves that files can be written there, before anything long is run.
void prepare_output(const std::filesystem::path& out);

/// Draws report.html with the Python that ./ladder chose, which puts it in its place when it is complete.
/// Returns 0 where it did, else Python's exit status, -1 where there is no Python. To be called while an
/// Uninterrupted lives: an interrupt ends the drawing.
int draw_report(const std::filesystem::path& json, const std::filesystem::path& html);

}  // namespace flashladder
