#pragma once
#include <stdexcept>
#include <string>

namespace flashladder {

/// Something the user gave is wrong or missing. what() is one sentence: what, where, and how to correct it.
/// The program prints it and exits with status 2.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The command itself is wrong (an option, a number out of its range).
struct UsageError : Error {
  using Error::Error;
};

}  // namespace flashladder
