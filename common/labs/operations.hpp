#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/labs/program/message.hpp"

namespace flashladder::lab {

/// What a program's basic blocks compute, from its machine code as objdump prints it. `begin` of a
/// lab::Block is where the call that counted it returns to.
class MachineCode {
 public:
  explicit MachineCode(const std::string& disassembly);

  /// What is computed in all when blocks run so often.
  Operations operations(const std::vector<Block>& blocks) const;

 private:
  std::map<std::uint64_t, Operations> blocks_;
};

}  // namespace flashladder::lab
