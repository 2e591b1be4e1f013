#pragma once
// What stage 81 has compiled on demand: a kernel for a policy, of which only the kernel knows the type.
#include <string>
#include <typeindex>

#include "common/kernel/host.hpp"
#include "common/kernel/run_time.hpp"
#include "stages/74_documents/policy.hpp"

namespace flashladder::stage_81 {
namespace {

/// A policy without its type: where it is, what it is called, and what the host asks it.
struct AnyPolicy {
  using Sequences = stage_74::PackedSequences;

  /// `policy` must live as long.
  template <class Policy>
  explicit AnyPolicy(const Policy& policy)
      : causal(Policy::causal),
        address_(&policy),
        bytes_(sizeof(Policy)),
        type_(typeid(Policy)),
        name_(device_name<Policy>) {
    if constexpr (Policy::Sequences::packed) sequences_ = policy.sequences();
  }

  bool causal;  ///< As of a Policy.
  /// Those of the policy; none where it packs none.
  const Sequences& sequences() const { return sequences_; }
  /// Where it is.
  const void* address() const { return address_; }
  /// What it takes.
  std::size_t bytes() const { return bytes_; }
  /// Which it is.
  std::type_index type() const { return type_; }
  /// How device code names it.
  std::string name() const { return name_(); }

 private:
  const void* address_;
  std::size_t bytes_;
  std::type_index type_;
  std::string (*name_)();
  Sequences sequences_ = {};
};

/// All policies, and a kernel's header.
inline std::string includes(const char* kernel) {
  std::string text;
  for (const char* header : {"stages/72_sliding_window/policy.hpp", "stages/73_prefix/policy.hpp",
                             "stages/74_documents/policy.hpp", "stages/75_softcap/policy.hpp",
                             "stages/76_bias/policy.hpp", "stages/77_sinks/policy.hpp",
                             "stages/78_dropout/policy.hpp", "stages/79_block_map/policy.hpp", kernel})
    text += std::string("#include \"") + header + "\"\n";
  return text;
}

/// The template `name` in `header` for a dtype, a policy and the numbers of its tile. For a GPU the
/// compiler is also asked whether it lays out the policy as the host does.
template <class... Numbers>
KernelSource source_of(const char* header, const char* name, Dtype dtype, const AnyPolicy& policy,
                       Numbers... numbers) {
  const std::string type = policy.name();
  std::string text = includes(header);
  if (kernel_backend == Backend::cuda)
    text += "static_assert(sizeof(" + type + ") == " + std::to_string(policy.bytes()) + ");\n";
  std::string arguments = (dtype == Dtype::fp16 ? "flashladder::f16, " : "flashladder::bf16, ") + type;
  ((arguments += ", " + std::to_string(numbers)), ...);
  return {text, std::string("flashladder::") + name + "<" + arguments + ">"};
}

}  // namespace
}  // namespace flashladder::stage_81
