#pragma once
#include <cstddef>

namespace flashladder {

/// Calls that got memory so far, other than the workspace's own. The linker puts the counting functions in
/// the place of malloc and the like, also inside a C++ runtime that is linked statically
/// (flashladder_count_allocations in common/cmake/Allocations.cmake).
long allocations();

/// Where it is not null, it is told of all memory that is got, the workspace's too: `by_workspace`.
extern void (*allocation_observer)(const void* memory, std::size_t bytes, bool by_workspace);

}  // namespace flashladder
