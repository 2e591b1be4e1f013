#pragma once

namespace flashladder {

/// Calls that got memory so far, other than the workspace's own. The linker puts the counting functions in
/// the place of malloc and the like, also inside a C++ runtime that is linked statically
/// (flashladder_count_allocations in common/cmake/Allocations.cmake).
long allocations();

}  // namespace flashladder
