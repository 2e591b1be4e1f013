#pragma once
// Kernels that are compiled for a GPU when they are first asked for.
#include <cstdio>
#include <map>
#include <mutex>
#include <typeindex>
#include <utility>

#include "stages/81_on_demand/policy.hpp"

namespace flashladder::stage_81 {
namespace {

/// Whether kernels of a stage can be compiled for the current GPU. Where they cannot, stderr is told why,
/// and whose kernels run instead, once.
inline bool can_compile(int stage, const char* others) {
  const std::string why = why_no_compiler(architecture());
  static std::once_flag said;
  if (!why.empty())
    std::call_once(said, [&] {
      std::fprintf(stderr, "flashladder: stage %d runs the kernels of %s: %s\n", stage, others,
                   why.c_str());
    });
  return why.empty();
}

// The stages of variants whose kernels are compiled with the program.
constexpr int first_compiled = 70, last_compiled = 80;

/// The first of them that takes a call: stage 80 takes all that 81 to 83 take.
template <class Call>
const Stage& compiled_before(const Call& f) {
  for (const Stage* one : cuda_stages()) {
    if (one->number >= first_compiled && one->number <= last_compiled && one->has(Call::pass) &&
        one->supports.takes(f.problem))
      return *one;
  }
  throw Error("no stage has kernels for these variants");
}

/// The kernels that one tile has had, by policy and GPU.
class Kernels {
 public:
  /// The kernel for a policy, of source() where it is asked for the first time. Nobody waits here for the
  /// compiler but who asks for the same kernel.
  template <class Source>
  LoadedKernel of(const AnyPolicy& policy, Source source) {
    const std::pair key(policy.type(), architecture());
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = kernels_.find(key); found != kernels_.end()) return {found->second};
    }
    const void* kernel = load_kernel(source(), key.second);
    const std::lock_guard lock(mutex_);
    kernels_.emplace(key, kernel);
    return {kernel};
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::type_index, int>, const void*> kernels_;
};

}  // namespace
}  // namespace flashladder::stage_81
