#include "common/kernel/run_time.hpp"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/error.hpp"
#include "common/kernel/run_time_headers.hpp"

namespace flashladder {
namespace {

namespace fs = std::filesystem;

/// NVRTC's functions. They are looked for when they are needed: a program without them runs all the same.
struct Nvrtc {
  decltype(&nvrtcVersion) version = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) count_architectures = nullptr;
  decltype(&nvrtcGetSupportedArchs) architectures = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcAddNameExpression) add_name = nullptr;
  decltype(&nvrtcGetLoweredName) lowered_name = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;

  std::string library;                ///< By which name it was found.
  std::string why_not;                ///< Why it cannot be used; empty where it can.
  std::vector<std::string> includes;  ///< CUDA's own folders of headers.
  std::vector<int> known;             ///< The architectures that it compiles for.
  int major = 0, minor = 0;
};

/// Folders with CUDA's headers: those of the build, or where the environment says that CUDA is. CUDA 13 has
/// its C++ library, CCCL, in a folder within.
std::vector<std::string> cuda_headers() {
  std::vector<fs::path> candidates;
  std::istringstream of_build(FLASHLADDER_CUDA_INCLUDES);
  for (std::string folder; std::getline(of_build, folder, ':');) candidates.emplace_back(folder);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* root = std::getenv(name)) candidates.push_back(fs::path(root) / "include");
  candidates.emplace_back("/usr/local/cuda/include");
  std::vector<std::string> found;
  std::error_code none;
  for (const fs::path& folder : candidates) {
    if (!fs::is_regular_file(folder / "cuda_fp16.h", none)) continue;
    found.push_back(folder.string());
    if (fs::is_directory(folder / "cccl", none)) found.push_back((folder / "cccl").string());
    break;
  }
  return found;
}

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Nvrtc find_nvrtc() {
  Nvrtc n;
  void* library = nullptr;
  // A process that has PyTorch has one in memory; the loader knows it by its name.
  for (const std::string& name :
       {"libnvrtc.so." + std::to_string(CUDART_VERSION / 1000), std::string(FLASHLADDER_NVRTC)}) {
    if (name.empty() || library != nullptr) continue;
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    n.library = name;
  }
  if (library == nullptr) {
    const char* said = dlerror();
    n.why_not = std::string("there is no NVRTC (") + (said == nullptr ? n.library : said) +
                "): install the CUDA Toolkit";
    return n;
  }
  const bool complete = look_up(library, "nvrtcVersion", n.version) &&
                        look_up(library, "nvrtcGetNumSupportedArchs", n.count_architectures) &&
                        look_up(library, "nvrtcGetSupportedArchs", n.architectures) &&
                        look_up(library, "nvrtcGetErrorString", n.error_string) &&
                        look_up(library, "nvrtcCreateProgram", n.create) &&
                        look_up(library, "nvrtcDestroyProgram", n.destroy) &&
                        look_up(library, "nvrtcAddNameExpression", n.add_name) &&
                        look_up(library, "nvrtcGetLoweredName", n.lowered_name) &&
                        look_up(library, "nvrtcCompileProgram", n.compile) &&
                        look_up(library, "nvrtcGetProgramLogSize", n.log_size) &&
                        look_up(library, "nvrtcGetProgramLog", n.log) &&
                        look_up(library, "nvrtcGetCUBINSize", n.cubin_size) &&
                        look_up(library, "nvrtcGetCUBIN", n.cubin);
  int count = 0;
  if (!complete || n.version(&n.major, &n.minor) != NVRTC_SUCCESS ||
      n.count_architectures(&count) != NVRTC_SUCCESS) {
    n.why_not =
        n.library + " is no NVRTC that this program knows: install another version of the CUDA Toolkit";
    return n;
  }
  n.known.resize(static_cast<std::size_t>(count));
  n.architectures(n.known.data());
  n.includes = cuda_headers();
  if (n.includes.empty())
    n.why_not =
        "NVRTC is there, and CUDA's headers are not: install the CUDA Toolkit, and let CUDA_HOME say where";
  return n;
}

const Nvrtc& nvrtc() {
  static const Nvrtc found = find_nvrtc();
  return found;
}

/// FNV-1a, a checksum of 64 bits.
class Checksum {
 public:
  Checksum& operator<<(std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
    add(0);  // so that "ab", "c" and "a", "bc" differ
    return *this;
  }
  std::string in_hex() const {
    std::ostringstream out;
    out << std::hex << sum_;
    return out.str();
  }

 private:
  void add(unsigned char byte) { sum_ = (sum_ ^ byte) * 0x100000001b3; }
  std::uint64_t sum_ = 0xcbf29ce484222325;
};

/// What NVRTC is told.
std::vector<std::string> options_for(int architecture) {
  // wgmma and setmaxnreg are in 90a alone, which is for the same GPUs as 90.
  const std::string own = architecture == 90 ? "a" : "";
  std::vector<std::string> options = {"--gpu-architecture=sm_" + std::to_string(architecture) + own,
                                      "--std=c++20"};
  for (const std::string& folder : nvrtc().includes) options.push_back("-I" + folder);
  return options;
}

/// What tells a kept kernel from all others, in one line.
std::string description(const KernelSource& source, int architecture) {
  static const std::string headers = [] {
    Checksum sum;
    for (const DeviceHeader& header : device_headers()) sum << header.name << header.text;
    return sum.in_hex();
  }();
  Checksum text;
  text << source.text;
  std::ostringstream out;
  out << source.name << " NVRTC " << nvrtc().major << '.' << nvrtc().minor << " CUDA " << CUDART_VERSION
      << ' ' << headers << ' ' << text.in_hex();
  for (const std::string& option : options_for(architecture)) out << ' ' << option;
  return out.str();
}

// A kept kernel is a file of three lines, its description, its symbol and the checksum of the cubin, and
// then the cubin.
std::optional<MachineCode> read_kept(const fs::path& path, const std::string& description) {
  std::ifstream file(path, std::ios::binary);
  std::string is, sum;
  MachineCode code;
  if (!std::getline(file, is) || is != description || !std::getline(file, code.symbol) ||
      !std::getline(file, sum))
    return std::nullopt;
  code.cubin.assign(std::istreambuf_iterator<char>(file), {});
  Checksum read;
  read << code.cubin;
  if (code.cubin.empty() || sum != read.in_hex()) return std::nullopt;
  return code;
}

/// Under a name of its own at first: who reads it meanwhile sees all of it, or nothing.
void keep(const fs::path& path, const std::string& description, const MachineCode& code) {
  static std::atomic<int> number = 0;
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  const fs::path own = path.string() + "." + std::to_string(getpid()) + "." + std::to_string(number++);
  Checksum sum;
  sum << code.cubin;
  std::ofstream file(own, std::ios::binary);
  file << description << '\n' << code.symbol << '\n' << sum.in_hex() << '\n' << code.cubin;
  file.close();
  if (file) fs::rename(own, path, failed);
  if (!file || failed) fs::remove(own, failed);
}

std::atomic<int> compiled = 0;

/// By NVRTC.
MachineCode compile(const KernelSource& source, int architecture) {
  const Nvrtc& n = nvrtc();
  const auto require = [&](nvrtcResult status, const char* what) {
    if (status != NVRTC_SUCCESS)
      throw Error(std::string("NVRTC: ") + what + ": " + n.error_string(status) + ", for " + source.name);
  };
  std::vector<const char*> names, texts;
  for (const DeviceHeader& header : device_headers()) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  nvrtcProgram program = nullptr;
  require(n.create(&program, source.text.c_str(), "flashladder.cu", static_cast<int>(names.size()),
                   texts.data(), names.data()),
          "a program");
  const auto destroy = [&](nvrtcProgram* p) { n.destroy(p); };
  const std::unique_ptr<nvrtcProgram, decltype(destroy)> destroyed(&program, destroy);
  require(n.add_name(program, source.name.c_str()), "a name");
  const std::vector<std::string> options = options_for(architecture);
  std::vector<const char*> words;
  words.reserve(options.size());
  for (const std::string& option : options) words.push_back(option.c_str());
  ++compiled;
  const nvrtcResult status = n.compile(program, static_cast<int>(words.size()), words.data());
  std::size_t size = 0;
  if (status != NVRTC_SUCCESS) {
    std::string log;
    if (n.log_size(program, &size) == NVRTC_SUCCESS) {
      log.resize(size);
      n.log(program, log.data());
    }
    throw Error("NVRTC does not compile " + source.name + ":\n" + log.c_str());
  }
  MachineCode code;
  const char* symbol = nullptr;
  require(n.lowered_name(program, source.name.c_str(), &symbol), "the kernel's symbol");
  code.symbol = symbol;
  require(n.cubin_size(program, &size), "the size of the machine code");
  code.cubin.resize(size);
  require(n.cubin(program, code.cubin.data()), "the machine code");
  return code;
}

}  // namespace

std::string why_no_compiler(int architecture) {
  if (CUDART_VERSION < 12080)
    return "this program was built with a CUDA Toolkit before 12.8, which loads no kernels at run time";
  const Nvrtc& n = nvrtc();
  if (!n.why_not.empty()) return n.why_not;
  if (std::find(n.known.begin(), n.known.end(), architecture) != n.known.end()) return "";
  return n.library + ", version " + std::to_string(n.major) + "." + std::to_string(n.minor) +
         ", does not compile for compute capability " + std::to_string(architecture / 10) + "." +
         std::to_string(architecture % 10) + ": install a newer CUDA Toolkit";
}

int compiled_at_run_time() {
  return compiled;
}

std::string folder_of_kernels() {
  const auto in = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (const fs::path own = in("FLASHLADDER_CACHE"); !own.empty()) return own.string();
  if (const fs::path caches = in("XDG_CACHE_HOME"); !caches.empty())
    return (caches / "flashladder").string();
  if (const fs::path home = in("HOME"); !home.empty()) return (home / ".cache/flashladder").string();
  return "";
}

MachineCode compile_at_run_time(const KernelSource& source, int architecture) {
  if (const std::string why = why_no_compiler(architecture); !why.empty())
    throw Error("no kernel can be compiled at run time: " + why);
  const std::string folder = folder_of_kernels();
  if (folder.empty()) return compile(source, architecture);
  const std::string line = description(source, architecture);
  Checksum sum;
  sum << line;
  const fs::path path = fs::path(folder) / (sum.in_hex() + ".kernel");
  if (auto kept = read_kept(path, line)) return *std::move(kept);
  MachineCode code = compile(source, architecture);
  keep(path, line, code);
  return code;
}

#if CUDART_VERSION >= 12080
namespace {

const void* load(const MachineCode& code, const std::string& name) {
  cudaLibrary_t library = nullptr;  // never unloaded: kernels may run until the process ends
  cudaKernel_t kernel = nullptr;
  cudaError_t status =
      cudaLibraryLoadData(&library, code.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (status == cudaSuccess) status = cudaLibraryGetKernel(&kernel, library, code.symbol.c_str());
  if (status == cudaSuccess) return reinterpret_cast<const void*>(kernel);
  (void)cudaGetLastError();  // reported here: the next launch must not find it
  throw Error("a kernel that was compiled at run time, " + name + ": " + cudaGetErrorString(status));
}

}  // namespace

const void* load_kernel(const KernelSource& source, int architecture) {
  // Who asks for a kernel first makes it; who asks for the same one meanwhile waits.
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, std::shared_future<const void*>> kernels;
  std::promise<const void*> made;
  std::shared_future<const void*> kernel;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex);
    std::shared_future<const void*>& known = kernels[{source.text + source.name, architecture}];
    is_first = !known.valid();
    if (is_first) known = made.get_future().share();
    kernel = known;
  }
  if (is_first) {
    try {
      made.set_value(load(compile_at_run_time(source, architecture), source.name));
    } catch (...) {
      made.set_exception(std::current_exception());
    }
  }
  return kernel.get();
}
#else
const void* load_kernel(const KernelSource&, int architecture) {
  throw Error(why_no_compiler(architecture));
}
#endif

std::string device_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  if (status != 0) throw Error(std::string("the type ") + mangled + " has no name");
  std::string name = readable.get();
  constexpr std::string_view without_a_name = "(anonymous namespace)::";
  for (std::size_t at; (at = name.find(without_a_name)) != name.npos;)
    name.erase(at, without_a_name.size());
  return name;
}

}  // namespace flashladder
