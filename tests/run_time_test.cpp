// Kernels that are compiled at run time, without a GPU: NVRTC needs none.
#include "common/kernel/run_time.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "common/check/turn.hpp"
#include "common/error.hpp"
#include "kernel_folder.hpp"

// Stage 81 itself, for the types that it makes of calls. Of its kernels one is enough.
#define FLASHLADDER_ONLY_FOR \
  { Dtype::fp16, 64, true, false }
#define stage_81 stage_81_tested
#include "stages/81_on_demand/attention.cu"
#undef stage_81

namespace {

using namespace flashladder;
namespace fs = std::filesystem;

constexpr int architecture_90 = 90;

/// A kernel that NVRTC compiles in no time.
KernelSource small_kernel(const std::string& text = "") {
  return {"#include \"common/simt/simt.hpp\"\n" + text +
              "\ntemplate <int n> __global__ void set(float* x) { x[threadIdx.x] = n; }\n",
          "set<3>"};
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool is_elf(const MachineCode& code) {
  return code.cubin.substr(1, 3) == "ELF" && code.cubin.find(code.symbol) != code.cubin.npos;
}

TEST_CASE("a kernel is compiled once, and kept", "[run-time]") {
  const KernelFolder folder;
  REQUIRE(folder_of_kernels() == folder.path());
  const int before = compiled_at_run_time();
  const MachineCode first = compile_at_run_time(small_kernel(), architecture_90);
  CHECK(is_elf(first));
  CHECK(first.symbol.find("set") != first.symbol.npos);
  CHECK(compiled_at_run_time() == before + 1);
  const MachineCode again = compile_at_run_time(small_kernel(), architecture_90);
  CHECK(compiled_at_run_time() == before + 1);
  CHECK(again.symbol == first.symbol);
  CHECK(again.cubin == first.cubin);
  REQUIRE(folder.files().size() == 1);

  // Another GPU, another text and another name are other kernels.
  CHECK(compile_at_run_time(small_kernel(), 80).cubin != first.cubin);
  compile_at_run_time(small_kernel("// another"), architecture_90);
  KernelSource named = small_kernel();
  named.name = "set<4>";
  CHECK(compile_at_run_time(named, architecture_90).symbol != first.symbol);
  CHECK(compiled_at_run_time() == before + 4);
  CHECK(folder.files().size() == 4);
}

TEST_CASE("a kept kernel that is damaged, or none, is compiled again", "[run-time]") {
  const KernelFolder folder;
  const MachineCode code = compile_at_run_time(small_kernel(), architecture_90);
  REQUIRE(folder.files().size() == 1);
  const fs::path file = folder.files()[0];
  std::string text(fs::file_size(file), '\0');
  std::ifstream(file, std::ios::binary).read(text.data(), static_cast<std::streamsize>(text.size()));
  std::string flipped = text;
  flipped[flipped.size() / 2] ^= 1;
  std::string of_another = text;
  of_another[0] ^= 1;
  for (const std::string& damaged : {std::string(), text.substr(0, text.size() / 2), flipped, of_another}) {
    std::ofstream(file, std::ios::binary) << damaged;
    const int before = compiled_at_run_time();
    CHECK(compile_at_run_time(small_kernel(), architecture_90).cubin == code.cubin);
    CHECK(compiled_at_run_time() == before + 1);
    CHECK(compile_at_run_time(small_kernel(), architecture_90).cubin == code.cubin);  // mended
    CHECK(compiled_at_run_time() == before + 1);
  }
}

TEST_CASE("where nothing can be kept kernels are compiled all the same", "[run-time]") {
  const KernelFolder folder;
  folder.name_in_environment("/dev/null/no folder");
  CHECK(is_elf(compile_at_run_time(small_kernel(), architecture_90)));
}

TEST_CASE("many threads that want one kernel get it", "[run-time]") {
  const KernelFolder folder;
  std::vector<MachineCode> codes(8);
  std::vector<std::thread> threads;
  for (MachineCode& code : codes)
    threads.emplace_back([&] { code = compile_at_run_time(small_kernel(), architecture_90); });
  for (std::thread& thread : threads) thread.join();
  for (const MachineCode& code : codes) CHECK(code.cubin == codes[0].cubin);
  CHECK(is_elf(codes[0]));
  CHECK(folder.files().size() == 1);  // no part of one is left
}

TEST_CASE("what cannot be compiled is an error that says why", "[run-time]") {
  const KernelFolder folder;
  const std::string wrong =
      error_of([] { compile_at_run_time(small_kernel("int no_semicolon"), architecture_90); });
  CHECK(wrong.starts_with("NVRTC does not compile set<3>:\n"));
  CHECK(wrong.find("flashladder.cu(") != wrong.npos);
  CHECK(error_of([] { compile_at_run_time(small_kernel(), 10); }).find("compute capability 1.0") !=
        std::string::npos);
  CHECK(!fs::exists(folder.path()));  // nothing was kept
}

/// What a policy says of itself.
struct Said {
  bool has_bias, drops, skips_tiles, packed, has_sink, begins_later, causal;
};

/// Those kernels of a policy for one tile each that calls of stages 81 to 83 ask for: both passes of 81,
/// and 82 and 83, which have no block map.
std::vector<KernelSource> kernels_of(const stage_81_tested::AnyPolicy& policy, const Said& said, int d) {
  using stage_81_tested::source_of;
  const auto forward = [&](auto... tile) {
    return source_of("stages/70_policies/kernel.hpp", "stage_70::fa2_forward", Dtype::bf16, policy,
                     tile...);
  };
  const auto backward = [&](auto... tile) {
    return source_of("stages/71_policies_backward/kernel.hpp", "stage_71::fa2_backward", Dtype::fp16,
                     policy, tile...);
  };
  std::vector<KernelSource> kernels = {
      d == 64 ? forward(64, 128, 128, 4, 2, 8) : forward(256, 128, 128, 8, 1, 8),
      d == 64 ? backward(64, 64, 128, 4, 2, 1, 32, 4) : backward(256, 64, 64, 8, 1, 2, 64, 8)};
  if (!said.skips_tiles) {
    kernels.push_back(source_of("stages/82_hopper_policies/kernel.hpp", "stage_82::wgmma_forward",
                                Dtype::fp16, policy, d, d == 64 && !said.drops ? 4 : 3));
    kernels.push_back(source_of("stages/83_hopper_policies_backward/kernel.hpp", "stage_83::wgmma_backward",
                                Dtype::bf16, policy, d));
  }
  return kernels;
}

/// These kernels of each combination of variants, by the name of its type.
std::map<std::string, std::vector<KernelSource>> kernels_of_all_calls() {
  std::map<std::string, std::vector<KernelSource>> found;
  for (int asked = 0; asked < 4 << 7; ++asked) {
    Problem p{.Nq = 200, .Nk = 200, .dtype = Dtype::fp16};
    const auto is_asked = [&](int variant) { return (asked >> variant & 1) != 0; };
    const int mask = asked >> 7;  // none, the causal one, a window, a prefix
    if (is_asked(0)) p.bias_batch = p.bias_heads = p.bias_rows = 1;
    if (is_asked(1)) p.softcap = 30;
    p.alibi = is_asked(2);
    if (is_asked(3)) p.dropout = {0.1f, 0, /*seed_in_memory=*/is_asked(6)};  // each with some of the others
    if (is_asked(4)) p.block_map = {1, 1, 2, 2, {1, 1, 1, 1}};
    if (is_asked(5)) p.packing = Packing::of({0, 200}, {0, 200});
    p.sinks = is_asked(6);
    p.causal = mask == 1 || mask == 3;
    if (mask == 2) p.window = {30, 30};
    if (mask == 3) p.prefix = 30;
    if (!error_of([&] { p.validate(); }).empty()) continue;  // not all go together
    Workspace workspace;
    const Forward f{.problem = p, .workspace = workspace};
    // For all types: what is compiled for each of the hundreds would take minutes to compile.
    const auto check = [&](const stage_81_tested::AnyPolicy& any, const void* address, const Said& said) {
      CHECK(said.has_bias == is_asked(0));
      CHECK(said.drops == is_asked(3));
      CHECK(said.skips_tiles == is_asked(4));
      CHECK(said.packed == is_asked(5));
      CHECK(said.has_sink == is_asked(6));
      CHECK(said.begins_later == (mask == 2 || is_asked(0)));  // a bias hides keys, too
      CHECK(said.causal == (mask != 0 || is_asked(0)));
      CHECK(any.causal == said.causal);
      CHECK(any.sequences().sequences == p.packing.sequences);
      CHECK(any.address() == address);
      CHECK((any.name().find("Prefix") != std::string::npos) == (mask == 3));
      // A bias stands on a window, whatever the mask is.
      CHECK(found.emplace(any.name(), kernels_of(any, said, asked / 2 % 2 == 0 ? 64 : 128)).second ==
            (mask == 0 || mask == 3 || !is_asked(0)));
    };
    stage_81_tested::with_policy<stage_81_tested::OfSinks>(f, [&](const auto& policy) {
      using Policy = std::decay_t<decltype(policy)>;
      check(stage_81_tested::AnyPolicy(policy), &policy,
            {Policy::has_bias, Policy::drops, Policy::skips_tiles, Policy::Sequences::packed,
             Policy::has_sink, Policy::begins_later, Policy::causal});
    });
  }
  return found;
}

TEST_CASE("a type has the name that device code has for it", "[run-time]") {
  // As nvcc's host compiler has it, with its own name for a namespace without one.
  CHECK(device_name(
            "N11flashladder8stage_7048_GLOBAL__N__7b6fd82f_15_81_on_demand_cu_637cacef5PlainILb1EEE") ==
        "flashladder::stage_70::Plain<true>");
  CHECK(device_name<stage_75::Softcap<stage_70::Plain<false>>>() ==
        "flashladder::stage_75::Softcap<flashladder::stage_70::Plain<false> >");
}

/// Compiles of those whose number `wanted` takes one kernel each.
void compile_all(const auto& wanted) {
  const auto kernels = kernels_of_all_calls();
  REQUIRE(kernels.size() == 256);
  const KernelFolder folder;
  std::size_t number = 0, compiled = 0;
  for (const auto& [name, of_type] : kernels) {
    const std::size_t i = number++;
    if (!wanted(i)) continue;
    INFO(name);
    CHECK(is_elf(compile_at_run_time(of_type[compiled++ % of_type.size()], architecture_90)));
  }
}

TEST_CASE("the kernels for some combinations of variants can be compiled", "[run-time]") {
  compile_all([](std::size_t i) { return i % 40 == 7; });
}

TEST_CASE("the kernels for all combinations of variants can be compiled", "[every-run-time]") {
  const Turn turn = turn_of_environment();
  compile_all([&](std::size_t i) { return turn.takes(i); });
}

}  // namespace
