#pragma once
#include <string>

namespace flashladder {

/// The commit the sources are at, with "-dirty" where they differ from it; "unknown" outside a repository.
std::string commit();

/// "FlashLadder 0.1.0, commit 0123456789ab"
std::string version_text();

}  // namespace flashladder
