#pragma once
#include <cstdint>
#include <vector>

#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// A call, as addr2line takes it, by the address that it returns to.
std::uint64_t place_in_program(const void* after_call);

/// The calls that led to the exception that was thrown last, innermost first: addresses in the program, as
/// addr2line takes them. The linker puts a recording function in the place of the one that throws (--wrap).
std::vector<std::uint64_t> calls_of_last_exception();

/// From here on, a signal that ends the program is first told to the grader, with the calls that led to it.
void report_signals();

}  // namespace flashladder::lab
