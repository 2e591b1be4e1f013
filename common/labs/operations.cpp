#include "common/labs/operations.hpp"

#include <charconv>
#include <regex>
#include <sstream>

namespace flashladder::lab {
namespace {

void add(Operations& sum, const Operations& more, std::int64_t times) {
  sum.on_single_numbers += times * more.on_single_numbers;
  sum.on_lanes += times * more.on_lanes;
  sum.divisions += times * more.divisions;
  sum.arithmetic += times * more.arithmetic;
}

/// What one instruction computes: on x86-64 "vmulps %zmm1,%zmm2,%zmm3", on ARM "fmul v0.4s, v1.4s, v2.4s".
Operations operations_of(const std::string& name, const std::string& operands) {
  static const std::regex x86(R"(v?(add|sub|mul|div|max|min|sqrt|u?comi)(s|p)(s|d))"),
      fused_x86(R"(vfn?m(?:add|sub|addsub|subadd)\d+(s|p)(s|d))"),
      x87(R"(fi?(add|subr?|mul|divr?|sqrt|u?comi?)(p|pp|s|l|ll|ip)?)"),  // long double
      arm("fn?mul|f(add|sub|div|max|min|maxnm|minnm|sqrt|cmpe?)"), fused_arm("fn?m(add|sub)|fml[as]");
  std::smatch match;
  int lanes = 0, each = 1;
  bool divides = false, compares = false;
  const auto lanes_of_registers = [&](const std::string& packed, const std::string& precision) {
    if (packed == "s") return 1;
    const int bytes = operands.find("zmm") != operands.npos   ? 64
                      : operands.find("ymm") != operands.npos ? 32
                                                              : 16;
    return bytes / (precision == "d" ? 8 : 4);
  };
  if (std::regex_match(name, match, x86)) {
    lanes = lanes_of_registers(match[2], match[3]);
    divides = match[1] == "div";
    static const std::regex comparing("max|min|u?comi");
    compares = std::regex_match(match[1].str(), comparing);
  } else if (std::regex_match(name, match, x87)) {
    lanes = 1;
    divides = match[1].str().starts_with("div");
    compares = match[1].str().ends_with("om") || match[1].str().ends_with("omi");
  } else if (std::regex_match(name, match, fused_x86)) {
    lanes = lanes_of_registers(match[1], match[2]);
    each = 2;
  } else if (std::regex_match(name, arm) || std::regex_match(name, fused_arm)) {
    static const std::regex shape(R"(\.(\d+)[sd])");
    lanes = std::regex_search(operands, match, shape) ? std::stoi(match[1]) : 1;
    each = std::regex_match(name, fused_arm) ? 2 : 1;
    divides = name == "fdiv";
    compares = name.starts_with("fm") && (name.find("max") != name.npos || name.find("min") != name.npos);
    compares = compares || name.starts_with("fcmp");
  }
  Operations result;
  (lanes > 1 ? result.on_lanes : result.on_single_numbers) = std::int64_t{lanes} * each;
  result.divisions = divides ? lanes : 0;
  result.arithmetic = compares ? 0 : std::int64_t{lanes} * each;
  return result;
}

}  // namespace

MachineCode::MachineCode(const std::string& disassembly) {
  std::istringstream lines(disassembly);
  bool begins = false;  // whether the next instruction is the first of a block
  Operations* block = nullptr;
  for (std::string line; std::getline(lines, line);) {
    // "    12ab:\tmulps  %xmm0,%xmm1"
    const std::size_t colon = line.find(":\t");
    if (colon == line.npos) continue;
    if (begins) {
      std::uint64_t address = 0;
      const std::size_t first = line.find_first_not_of(' ');
      std::from_chars(line.data() + first, line.data() + colon, address, 16);
      block = &blocks_[address];
    }
    const std::size_t name_end = std::min(line.find_first_of(" \t", colon + 2), line.size());
    const std::string name = line.substr(colon + 2, name_end - colon - 2), operands = line.substr(name_end);
    begins = operands.find("<__sanitizer_cov_trace_pc") != operands.npos;
    if (block != nullptr) add(*block, operations_of(name, operands), 1);
    if (begins || name == "jmp" || name == "ret" || name == "b") block = nullptr;
  }
}

Operations MachineCode::operations(const std::vector<Block>& blocks) const {
  Operations all;
  for (const Block& block : blocks) {
    if (const auto found = blocks_.find(block.begin); found != blocks_.end())
      add(all, found->second, static_cast<std::int64_t>(block.count));
  }
  return all;
}

}  // namespace flashladder::lab
