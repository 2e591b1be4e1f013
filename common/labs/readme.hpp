#pragma once
#include <string>

#include "common/labs/folder.hpp"

namespace flashladder::lab {

/// The README of a lab's folder: its handout, and how it is graded.
std::string readme_of(const Lab& lab);

}  // namespace flashladder::lab
