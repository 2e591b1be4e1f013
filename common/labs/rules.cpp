#include "common/labs/rules.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "common/error.hpp"
#include "common/labs/folder.hpp"
#include "common/labs/tokens.hpp"

namespace flashladder::lab {
namespace {

namespace fs = std::filesystem;
using Words = std::span<const std::string_view>;
using Kind = Token::Kind;

bool among(std::string_view word, Words words) {
  return std::ranges::find(words, word) != words.end();
}
bool begins_with_one(std::string_view word, Words beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view one) { return word.starts_with(one); });
}
bool has_one(std::string_view text, Words parts) {
  return std::ranges::any_of(parts, [&](std::string_view one) { return text.find(one) != text.npos; });
}

// --- the text

constexpr std::string_view keywords[] = {
    "alignas",      "alignof",      "auto",      "bool",      "break",
    "case",         "catch",        "char",      "class",     "concept",
    "const",        "const_cast",   "consteval", "constexpr", "constinit",
    "continue",     "decltype",     "default",   "delete",    "do",
    "double",       "dynamic_cast", "else",      "enum",      "explicit",
    "export",       "extern",       "false",     "final",     "float",
    "for",          "friend",       "goto",      "if",        "inline",
    "int",          "long",         "mutable",   "namespace", "new",
    "noexcept",     "nullptr",      "operator",  "override",  "private",
    "protected",    "public",       "register",  "requires",  "return",
    "short",        "signed",       "sizeof",    "static",    "static_assert",
    "static_cast",  "struct",       "switch",    "template",  "this",
    "thread_local", "throw",        "true",      "try",       "typedef",
    "typeid",       "typename",     "union",     "unsigned",  "using",
    "virtual",      "void",         "volatile",  "while",     "reinterpret_cast"};

/// What kernels are written in (docs/vocabulary.md), and what counts.
constexpr std::string_view ladder_words[] = {"f32",
                                             "f16",
                                             "bf16",
                                             "gmem",
                                             "smem",
                                             "smem_array",
                                             "smem_tile",
                                             "dynamic_smem",
                                             "dynamic_tile",
                                             "mac",
                                             "load2",
                                             "load4",
                                             "store4",
                                             "atomic_add",
                                             "atomic_add2",
                                             "atomic_add4",
                                             "cache_policy",
                                             "evict_first",
                                             "evict_last",
                                             "nearest_integer",
                                             "excess_integer",
                                             "bits_of",
                                             "sums_of_pairs",
                                             "count_tile",
                                             "launch",
                                             "launch_dependent",
                                             "launch_clusters",
                                             "DeviceBuffer",
                                             "ExtraBuffer",
                                             "SavedBuffer",
                                             "ForwardBuffers",
                                             "BackwardBuffers",
                                             "Sizes",
                                             "BackwardSizes",
                                             "Strides",
                                             "Uncounted",
                                             "for_head_dim",
                                             "for_half_dtype",
                                             "for_row",
                                             "kernel_backend",
                                             "probe",
                                             "expf",
                                             "exp2f",
                                             "logf",
                                             "log2f",
                                             "fmaxf",
                                             "fminf",
                                             "fmaf",
                                             "ex2_approx",
                                             "max3_unless_negative",
                                             "load_pair",
                                             "store_pair",
                                             "load_eight",
                                             "store_eight",
                                             "round_pair",
                                             "pair",
                                             "copy_16B",
                                             "store_16B",
                                             "ldmatrix_x4",
                                             "ldmatrix_x4_trans",
                                             "mma_m16n8k16",
                                             "cp_async_16B",
                                             "cp_async_4B",
                                             "cp_async_commit",
                                             "cp_async_wait",
                                             "mbarrier",
                                             "mbarrier_init",
                                             "fence_mbarrier_init",
                                             "mbarrier_arrive",
                                             "mbarrier_arrive_expect_tx",
                                             "mbarrier_wait",
                                             "tensor_map",
                                             "make_tensor_map",
                                             "map_of",
                                             "tma_load",
                                             "tma_store",
                                             "bulk_reduce_add",
                                             "tma_commit",
                                             "tma_wait_read",
                                             "fence_proxy_async",
                                             "cluster_sync",
                                             "mbarrier_arrive_in",
                                             "mbarrier_arrive_expect_store",
                                             "store_in",
                                             "tma_load_multicast",
                                             "launch_dependents",
                                             "grid_dependency_wait",
                                             "behind_wait",
                                             "Major",
                                             "matrix_descriptor",
                                             "k_major",
                                             "mn_major",
                                             "wgmma",
                                             "wgmma_fence",
                                             "wgmma_commit",
                                             "wgmma_wait",
                                             "elect_one",
                                             "any_lane",
                                             "lanes_where",
                                             "lowest_bit",
                                             "stmatrix_x4",
                                             "stmatrix_x4_trans",
                                             "registers_down",
                                             "registers_up",
                                             "named_barrier_sync",
                                             "named_barrier_arrive",
                                             "load_tile",
                                             "load_tile_async",
                                             "load_panels_async",
                                             "Panels",
                                             "Swizzle",
                                             "AsItIs",
                                             "lanes_max",
                                             "lanes_sum",
                                             "transpose_quad",
                                             "uniform",
                                             "opaque",
                                             "draw",
                                             "finite",
                                             "tiles",
                                             "threadIdx",
                                             "blockIdx",
                                             "blockDim",
                                             "gridDim",
                                             "Counted",
                                             "Workspace",
                                             "workspace",
                                             "Problem",
                                             "Forward",
                                             "Stage",
                                             "flashladder"};

/// Names that make new ones, name other files, or hide what the text says.
constexpr std::string_view hiding_words[] = {
    "__CONCAT", "__STRING", "_Pragma",       "__has_include", "__has_include_next", "__has_embed",
    "__DATE__", "__TIME__", "__TIMESTAMP__", "__BASE_FILE__", "__INCLUDE_LEVEL__",  "__COUNTER__"};
constexpr std::string_view hiding_beginnings[] = {"__REDIRECT", "__ASMNAME", "__glibc", "_GLIBCXX",
                                                  "__MATH",     "__SIMD",    "__DECL"};

constexpr std::string_view exceptions[] = {"throw", "try", "catch", "exception_ptr", "rethrow_exception"};
constexpr std::string_view stream_memory[] = {"iword", "pword", "xalloc"};
constexpr std::string_view intrinsic_beginnings[] = {"_mm", "__m128", "__m256", "__m512", "__builtin_ia32"};

constexpr std::string_view directives[] = {"include", "define", "undef",   "if",      "ifdef",
                                           "ifndef",  "elif",   "else",    "endif",   "error",
                                           "warning", "pragma", "elifdef", "elifndef"};
constexpr std::string_view pragmas[] = {"unroll", "omp", "once", "nounroll"};
constexpr std::string_view gcc_pragmas[] = {"unroll", "ivdep", "diagnostic", "loop"};

/// Reads the text from its first token to its last, and stops at the first that is not accepted.
class Reader {
 public:
  explicit Reader(const Handed& handed) : handed_(handed), tokens_(tokens_of(handed.text)) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (is("#", i) && is("include", i + 1)) last_include_ = tokens_[i].line;
      if (is("#", i) && is("define", i + 1)) own_macros_.insert(text(i + 2));
      const bool makes_type = is("struct", i) || is("class", i) || is("union", i);
      if (makes_type && i + 1 < tokens_.size() && tokens_[i + 1].kind == Kind::word)
        own_types_.insert(tokens_[i + 1].text);
    }
  }

  std::string first_refused() {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      std::string why = tokens_[i].in_directive && is("#", i) ? why_not_directive(i) : "";
      if (why.empty() && tokens_[i].in_directive && is("##", i))
        why = "## puts a name together that nobody can read here: write the name out";
      if (why.empty() && tokens_[i].kind == Kind::word) why = why_not_word(i);
      if (why.empty() && is("(", i)) why = why_not_c_cast(i);
      if (!why.empty()) return fmt::format("{}:{}: {}", handed_.file, tokens_[i].line, why);
    }
    return "";
  }

 private:
  bool is(std::string_view what, std::size_t i) const { return i < tokens_.size() && tokens_[i].is(what); }
  const std::string& text(std::size_t i) const {
    static const std::string none;
    return i < tokens_.size() ? tokens_[i].text : none;
  }

  std::string why_not_directive(std::size_t i) const {
    const std::string& name = text(i + 1);
    if (i + 1 < tokens_.size() && tokens_[i + 1].kind == Kind::end) return "";  // # alone
    if (!among(name, directives))
      return fmt::format("#{} is none of the directives that a lab's file may have", name);
    if (name == "include") return why_not_include(i + 2);
    if (name == "pragma") {
      if (is("omp", i + 2) && handed_.stage.backend != Backend::cpu)
        return "#pragma omp is not accepted: a stage of kernels launches them one after the other";
      const bool known = among(text(i + 2), pragmas) ||
                         ((is("GCC", i + 2) || is("clang", i + 2)) && among(text(i + 3), gcc_pragmas));
      return known ? ""
                   : fmt::format("#pragma {} is not accepted: only unroll, omp and the like are",
                                 text(i + 2));
    }
    if (name == "undef" && !own_macros_.contains(text(i + 2)))
      return fmt::format("#undef {} takes away a name that is not this file's", text(i + 2));
    return name == "define" ? why_not_macro(tokens_[i].line, text(i + 2)) : "";
  }

  std::string why_not_include(std::size_t i) const {
    if (i >= tokens_.size() || tokens_[i].kind != Kind::literal)
      return "#include names its file by a macro: write the name out";
    const std::string name = text(i).substr(1, text(i).size() - 2);
    const auto refused = [&](const char* why) { return fmt::format("#include {}: {}", text(i), why); };
    if (name.starts_with("/") || name.find("..") != name.npos || name.find('\\') != name.npos)
      return refused("a lab's file includes headers by their names, not files by their paths");
    const fs::path path = fs::path(name).lexically_normal();
    if (!fs::exists(folder_of(handed_.stage).parent_path().parent_path() / path))
      return "";  // of the standard library or the system: what is used of it shows in the object file
    const std::string folder = path.parent_path().string();
    static constexpr std::string_view folders[] = {"common/attention", "common/kernel", "common/simt",
                                                   "common/ptx"};
    static constexpr std::string_view parts[] = {"kernel", "policy", "launch"};  // of a stage's source
    const bool own = folder == "stages/" + folder_of(handed_.stage).filename().string();
    const bool solution = path.stem() == "oracle" || (own && among(path.stem().string(), parts));
    if (path.extension() == ".hpp" && !solution && (own || among(folder, folders))) return "";
    if (is_given(text(i))) return "";  // the kernels that a variant's policy is for
    return refused(folder.starts_with("stages/")
                       ? "a stage is written, not included: no source of a stage is part of a lab"
                       : "it is no part of a lab: headers of common/attention, common/kernel, common/simt "
                         "and common/ptx are, "
                         "without the oracle");
  }

  std::string why_not_macro(int line, const std::string& name) const {
    if (among(name, keywords) || among(name, ladder_words) || name.starts_with("__"))
      return fmt::format("#define {} gives a word another meaning that is not this file's", name);
    // In a header that comes later it could be any name.
    static constexpr std::string_view usual[] = {"NDEBUG", "_GNU_SOURCE", "_USE_MATH_DEFINES"};
    if (line < last_include_ && !among(name, usual))
      return fmt::format(
          "#define {} stands before an #include, and would change what is included: put it "
          "behind the last",
          name);
    return "";
  }

  std::string why_not_word(std::size_t i) const {
    const std::string& word = tokens_[i].text;
    if (word == "asm" || word == "__asm__" || word == "__asm")
      return "asm is not accepted: a stage is C++, and what asm does is not counted";
    if (among(word, hiding_words) || begins_with_one(word, hiding_beginnings))
      return fmt::format("{} is not accepted: it makes names, or looks at files, that nobody can read here",
                         word);
    if (word == "extern" && i + 1 < tokens_.size() && tokens_[i + 1].kind == Kind::literal)
      return fmt::format("extern {} is not accepted: a stage has nothing of other languages", text(i + 1));
    if (word == "simt")
      return "simt is the inside of the emulator, where the ledger is kept: a kernel takes its words "
             "without it";
    if (word == "Uncounted") return why_not_uncounted();
    if (word == "Where")
      return "Where is the place of a call, which the emulator takes by itself: leave it out";
    if (among(word, exceptions))
      return fmt::format("{} is not accepted: what is thrown is memory, and a way out, that nobody counts",
                         word);
    if (among(word, stream_memory))
      return fmt::format(
          "{} is memory of a stream, which would outlive a call: take memory from the workspace", word);
    if (begins_with_one(word, intrinsic_beginnings))
      return fmt::format(
          "{} is not accepted: what an intrinsic function loads is not watched, use the types "
          "of the skeleton",
          word);
    constexpr std::string_view of_a_stage = "stage_";
    if (word.starts_with(of_a_stage) && word.size() > of_a_stage.size() &&
        word.find_first_not_of("0123456789", of_a_stage.size()) == word.npos &&
        word.substr(of_a_stage.size()) != number_text(handed_.stage) && !is_given(word))
      return fmt::format(
          "{} is another stage: a lab's file names its own, and those that its skeleton names", word);
    if (word.starts_with("no_sanitize") || word.find("instrument") != word.npos)
      return fmt::format("{} is not accepted: all that a stage does is watched", word);
    if (word == "optimize" && is("(", i + 1) && i > 0 && tokens_[i - 1].kind == Kind::mark)
      return "optimize is not accepted: a file is compiled as all are";
    if (word.find("alloca") != word.npos && (word == "alloca" || word.starts_with("__builtin_alloca")))
      return fmt::format("{} takes memory that is not counted: take it from the workspace", word);
    return why_not_member(i);
  }

  /// Whether the skeleton has this word, or this name of a file, too.
  bool is_given(std::string_view what) const {
    const std::vector<Token> given = tokens_of(find_lab(handed_.stage).source.reference);
    return std::ranges::find(given, what, &Token::text) != given.end();
  }

  static std::ptrdiff_t count(const std::vector<Token>& tokens, std::string_view word) {
    return std::ranges::count_if(tokens, [&](const Token& token) { return token.is(word); });
  }

  /// Where the skeleton has one launch that is not counted, that launch, and its kernel, stay as they are.
  std::string why_not_uncounted() const {
    const std::vector<Token> given = tokens_of(find_lab(handed_.stage).source.reference);
    const auto find = [&](std::string_view word, auto begin) {
      return std::find_if(begin, given.end(), [&](const Token& token) { return token.is(word); });
    };
    const auto aside = find("Uncounted", given.begin()), launched = find("launch", aside);
    if (launched == given.end()) return "Uncounted is not accepted: all that a stage does is counted";
    const std::string kernel = (launched + 4)->text;  // launch("name", kernel
    auto function = find(kernel, given.begin());
    while (!function->is("__global__")) --function;
    // From a token on to the end of the block that it stands in, or that comes next.
    const auto to_end_of_block = [&](auto begin, int blocks) {
      auto end = begin;
      for (bool inside = blocks > 0; end != given.end() && (!inside || blocks > 0); ++end) {
        blocks += end->is("{") ? 1 : end->is("}") ? -1 : 0;
        inside = inside || blocks > 0;
      }
      return std::span(begin, end);
    };
    bool as_given = count(tokens_, kernel) == count(given, kernel) && count(tokens_, "Uncounted") == 1;
    const auto same = [](const Token& a, const Token& b) { return a.text == b.text; };
    for (const auto& part : {to_end_of_block(aside, 1), to_end_of_block(function, 0)}) {
      as_given =
          as_given &&
          std::search(tokens_.begin(), tokens_.end(), part.begin(), part.end(), same) != tokens_.end() &&
          std::ranges::none_of(part, [&](const Token& token) { return own_macros_.contains(token.text); });
    }
    if (as_given) return "";
    return fmt::format(
        "Uncounted is accepted around the launch of {} only, with both as the skeleton has them", kernel);
  }

  /// Of words that mean something else elsewhere.
  std::string why_not_member(std::size_t i) const {
    const std::string& word = tokens_[i].text;
    const bool member = i > 0 && (is(".", i - 1) || is("->", i - 1) || is("::", i - 1));
    static constexpr std::string_view copies[] = {"upload", "download"};
    if (member && among(word, copies))
      return fmt::format("{} is not accepted: tensors stay on the device, where kernels compute", word);
    static constexpr std::string_view insides[] = {"emulated", "counted_view"};
    if (member && (among(word, insides) || (word == "buffer" && is("(", i + 1))))
      return fmt::format("{} leads to the memory behind a counted pointer: use the pointer itself", word);
    if (i > 0 && is("::", i - 1) && word.size() > 1 && word.back() == '_' && i > 1 &&
        !own_types_.contains(text(i - 2)))
      return fmt::format("{} is a private member of a class that is not this file's", word);
    if (word == "Counted" && is("::", i + 1))
      return "Counted counts the reads of scores: a stage uses it as a number, and leaves its counts alone";
    if (word == "Reservation")
      return "Reservation is not accepted: take memory from the workspace with array(), or by ExtraBuffer";
    if (word == "Workspace" && !is("&", i + 1) && !is("::", i + 1) && !is(";", i + 1))
      return "a workspace of its own is not counted: use the one that the stage is given";
    return handed_.stage.backend == Backend::cpu ? "" : why_not_in_kernels(i);
  }

  /// Of words that could look into what is counted.
  std::string why_not_in_kernels(std::size_t i) const {
    const std::string& word = tokens_[i].text;
    static constexpr std::string_view places[] = {"threadIdx", "blockIdx", "blockDim", "gridDim"};
    const bool binary = i > 1 && (tokens_[i - 2].kind != Kind::mark || is(")", i - 2) || is("]", i - 2)) &&
                        !is("return", i - 2);
    if (among(word, places) && i > 1 && ((is("&", i - 1) && !binary) || is("addressof", i - 2)))
      return fmt::format("the address of {} is not a kernel's to take", word);
    const bool casts = (word == "reinterpret_cast" || word == "bit_cast") && is("<", i + 1);
    return casts ? why_not_type(word, i + 2, ">") : "";
  }

  /// A cast to a pointer as in C: "(float*)" where no name stands before it.
  std::string why_not_c_cast(std::size_t i) const {
    const bool calls = i > 0 && tokens_[i - 1].kind == Kind::word && !is("return", i - 1);
    if (handed_.stage.backend == Backend::cpu || calls) return "";
    std::size_t end = i + 1;
    while (end < tokens_.size() && (tokens_[end].kind == Kind::word || is("::", end) || is("*", end)))
      ++end;
    return is(")", end) && is("*", end - 1) ? why_not_type("a cast", i + 1, ")") : "";
  }

  /// Of the type from a token on that something is cast to. A counted pointer would be seen as something
  /// else that has its members: a class of the file's own, pointers to pointers.
  std::string why_not_type(std::string_view cast, std::size_t from, std::string_view end) const {
    int stars = 0;
    for (std::size_t j = from; j < tokens_.size() && !is(end, j); ++j) {
      stars += is("*", j) ? 1 : 0;
      if (own_types_.contains(text(j)) || stars > 1)
        return fmt::format(
            "{} to a class of its own, or to a pointer to pointers, could look into a counted "
            "pointer: use the pointer itself",
            cast);
    }
    return "";
  }

  const Handed& handed_;
  std::vector<Token> tokens_;
  int last_include_ = 0;
  std::set<std::string> own_types_, own_macros_;
};

// --- the object file

/// A symbol of an object file.
struct Symbol {
  std::string name;     ///< As the linker knows it.
  std::string section;  ///< Where it is defined; "" where it is not.
  bool defined = false;
  bool local = false;     ///< No other file sees it.
  bool strong = false;    ///< There may be no other of its name.
  bool chosen = false;    ///< Its place is chosen when the program is loaded (ifunc).
  bool writable = false;  ///< Data that can change.
};

/// What an object file says of itself.
struct Object {
  std::vector<Symbol> symbols;
  std::uint64_t runs_early = 0;  ///< How many of its functions run before main, or after it.
};

/// Reads an ELF file of 64 bits. Throws Error where it is none.
class ObjectReader {
 public:
  explicit ObjectReader(std::string bytes, const fs::path& path) : bytes_(std::move(bytes)), path_(path) {}

  Object read() {
    const auto header = at<Elf64_Ehdr>(0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) fail();
    std::uint64_t count = header.e_shnum, names = header.e_shstrndx;
    const auto first = at<Elf64_Shdr>(header.e_shoff);  // more than fit there are counted here
    if (count == 0) count = first.sh_size;
    if (names == SHN_XINDEX) names = first.sh_link;
    for (std::uint64_t i = 0; i < count; ++i)
      sections_.push_back(at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    if (names >= sections_.size()) fail();
    names_ = names;
    Object object;
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_SYMTAB) read_symbols(section, object);
    }
    for (const Elf64_Shdr& section : sections_) {
      static constexpr std::string_view early[] = {".init_array", ".fini_array", ".preinit_array", ".ctors",
                                                   ".dtors",      ".init",       ".fini"};
      if (section.sh_type != SHT_RELA && begins_with_one(name_of(section), early))
        object.runs_early += section.sh_size / sizeof(std::uint64_t);
    }
    return object;
  }

 private:
  [[noreturn]] void fail() const { throw Error(path_.string() + " is no object file that can be read"); }
  template <class T>
  T at(std::uint64_t offset) const {
    T value;
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof value) fail();
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  std::string string_at(const Elf64_Shdr& table, std::uint64_t offset) const {
    const std::uint64_t begin = table.sh_offset + offset;
    const std::size_t end = begin < bytes_.size() ? bytes_.find('\0', begin) : std::string::npos;
    if (end == std::string::npos) fail();
    return bytes_.substr(begin, end - begin);
  }
  std::string name_of(const Elf64_Shdr& section) const {
    return string_at(sections_[names_], section.sh_name);
  }
  const Elf64_Shdr& section(std::uint64_t i) const {
    if (i >= sections_.size()) fail();
    return sections_[i];
  }

  void read_symbols(const Elf64_Shdr& table, Object& object) const {
    const std::uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto raw = at<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym));
      const int type = ELF64_ST_TYPE(raw.st_info), binding = ELF64_ST_BIND(raw.st_info);
      Symbol& symbol = object.symbols.emplace_back();
      symbol.name = string_at(section(table.sh_link), raw.st_name);
      symbol.defined = raw.st_shndx != SHN_UNDEF;
      symbol.local = binding == STB_LOCAL;
      symbol.strong = binding == STB_GLOBAL;
      symbol.chosen = type == STT_GNU_IFUNC;
      const bool in_section = symbol.defined && raw.st_shndx < SHN_LORESERVE;
      if (in_section) symbol.section = name_of(section(raw.st_shndx));
      symbol.writable = raw.st_shndx == SHN_COMMON ||
                        (in_section && raw.st_size > 0 && (type == STT_OBJECT || type == STT_TLS) &&
                         (section(raw.st_shndx).sh_flags & SHF_WRITE) != 0 &&
                         !symbol.section.starts_with(".data.rel.ro"));
    }
  }

  std::string bytes_;
  fs::path path_;
  std::vector<Elf64_Shdr> sections_;
  std::uint64_t names_ = 0;
};

/// As a C++ programmer writes it.
std::string readable(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : symbol;
}

/// Functions of the C library that a stage may call: mathematics, memory, printing, and giving up.
bool is_allowed_c_name(std::string_view name) {
  static constexpr std::string_view mathematics[] = {
      "acos",      "acosh",     "asin",      "asinh", "atan",      "atan2",  "atanh",  "cbrt",
      "ceil",      "copysign",  "cos",       "cosh",  "erf",       "erfc",   "exp",    "exp10",
      "exp2",      "expm1",     "fabs",      "fdim",  "floor",     "fma",    "fmax",   "fmin",
      "fmod",      "frexp",     "hypot",     "ilogb", "ldexp",     "lgamma", "llrint", "llround",
      "log",       "log10",     "log1p",     "log2",  "logb",      "lrint",  "lround", "modf",
      "nan",       "nearbyint", "nextafter", "pow",   "remainder", "remquo", "rint",   "round",
      "roundeven", "scalbln",   "scalbn",    "sin",   "sincos",    "sinh",   "sqrt",   "tan",
      "tanh",      "tgamma",    "trunc"};
  static constexpr std::string_view others[] = {"abs",
                                                "labs",
                                                "llabs",
                                                "memchr",
                                                "memcmp",
                                                "memcpy",
                                                "memmove",
                                                "memset",
                                                "mempcpy",
                                                "strcat",
                                                "strchr",
                                                "strcmp",
                                                "strcpy",
                                                "strlen",
                                                "strncmp",
                                                "strncpy",
                                                "strncat",
                                                "strrchr",
                                                "strstr",
                                                "malloc",
                                                "calloc",
                                                "realloc",
                                                "free",
                                                "aligned_alloc",
                                                "qsort",
                                                "bsearch",
                                                "printf",
                                                "fprintf",
                                                "vprintf",
                                                "vfprintf",
                                                "snprintf",
                                                "vsnprintf",
                                                "sprintf",
                                                "vsprintf",
                                                "puts",
                                                "fputs",
                                                "putc",
                                                "putchar",
                                                "fputc",
                                                "fwrite",
                                                "fflush",
                                                "stdout",
                                                "stderr",
                                                "abort",
                                                "pthread_mutex_lock",
                                                "pthread_mutex_unlock"};
  // Of the compiler and its own library: exceptions, OpenMP, arithmetic that the processor lacks, checks.
  static constexpr std::string_view compilers[] = {"__cxa_",
                                                   "__gxx_personality_",
                                                   "_Unwind_",
                                                   "__tls_get_addr",
                                                   "__dso_handle",
                                                   "_GLOBAL_OFFSET_TABLE_",
                                                   "__assert_",
                                                   "__stack_chk_",
                                                   "__libc_single_threaded",
                                                   "__pthread_key_create",
                                                   "__gmon_start__",
                                                   "_ITM_",
                                                   "GOMP_",
                                                   "omp_",
                                                   "__kmpc_",
                                                   "__asan_",
                                                   "__ubsan_",
                                                   "__tsan_",
                                                   "__sanitizer_",
                                                   "__gcov_",
                                                   "__clang_",
                                                   "__aarch64_",
                                                   "__cpu_",
                                                   "__ext",
                                                   "__trunc",
                                                   "__div",
                                                   "__udiv",
                                                   "__mod",
                                                   "__umod",
                                                   "__mul",
                                                   "__float",
                                                   "__fix",
                                                   "__popcount",
                                                   "__powi",
                                                   "__ctz",
                                                   "__clz",
                                                   "__parity",
                                                   "_TLS_MODULE_"};
  if (begins_with_one(name, compilers)) return true;
  if (name.starts_with("__") && name.ends_with("_chk")) name = name.substr(2, name.size() - 6);
  if (among(name, others) || among(name, mathematics)) return true;
  if (name.starts_with("__") && name.ends_with("_finite")) name = name.substr(2, name.size() - 9);
  return !name.empty() && (name.back() == 'f' || name.back() == 'l') &&
         among(name.substr(0, name.size() - 1), mathematics);
}

/// Whether a stage may refer to a symbol that is defined elsewhere.
bool is_allowed(const std::string& name, const std::string& text) {
  if (!name.starts_with("_Z")) return is_allowed_c_name(name);
  if (name.starts_with("_ZGV")) return true;  // functions of the mathematics library for vectors
  // Memory that neither the workspace nor the count of allocations would see.
  if (name.ends_with("St11align_val_tRKSt9nothrow_t")) return false;
  if (name.find("11flashladder") != name.npos) {
    static constexpr std::string_view own[] = {
        "flashladder::simt::",      "flashladder::Workspace::", "flashladder::Problem::",
        "flashladder::OutOfMemory", "flashladder::UsageError",  "flashladder::Error",
        "flashladder::Support::",   "flashladder::to_string(",  "flashladder::size_of(",
        "flashladder::load_as(",    "flashladder::store_as(",   "flashladder::round_to("};
    return has_one(text, own);
  }
  static constexpr std::string_view outside[] = {
      "std::thread",          "this_thread",  "fstream",       "filebuf",
      "basic_file",           "filesystem",   "random_device", "chrono",
      "condition_variable",   "future",       "std::cin",      "std::set_terminate",
      "std::set_new_handler", "std::jthread", "stop_token",    "__thread"};
  return !has_one(text, outside);
}

/// What of the ladder's headers, and of the library's, every file has a copy of.
bool is_of_headers(const std::string& name) {
  static constexpr std::string_view beginnings[] = {"_ZN11flashladder7Counted",
                                                    "_ZN11flashladder4simt",
                                                    "_ZNSt",
                                                    "_ZSt",
                                                    "_ZN9__gnu_cxx",
                                                    "DW.ref.",
                                                    "_ZTH",
                                                    "_ZTW"};
  return begins_with_one(name, beginnings);
}

bool continues_name(char c) {
  return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
}

/// Where in the file a name stands, to begin a sentence with: "attention.cu:57", or the file alone.
std::string place_of_name(const Handed& handed, const std::string& readable_name) {
  std::string last;  // of "void a::b<int>(int)::c": c
  int depth = 0;
  bool ended = false;
  for (const char c : readable_name) {
    depth += c == '(' || c == '<' ? 1 : c == ')' || c == '>' ? -1 : 0;
    if (depth > 0) continue;
    if (continues_name(c)) {
      if (ended) last.clear();
      last += c;
    }
    ended = !continues_name(c);
  }
  for (const Token& token : tokens_of(handed.text)) {
    if (token.kind == Kind::word && token.text == last)
      return fmt::format("{}:{}", handed.file, token.line);
  }
  return handed.file;
}

}  // namespace

std::string refused_source(const Handed& handed) {
  const std::string& text = handed.text;
  if (text.size() > most_source_bytes)
    return fmt::format("{}: it has more than {} KiB: a stage has about 10", handed.file,
                       most_source_bytes >> 10);
  if (const std::size_t at = text.find('\0'); at != text.npos)
    return fmt::format("{}:{}: it is no plain text, there is a byte 0 in it: save it as UTF-8", handed.file,
                       1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  return Reader(handed).first_refused();
}

std::string refused_object(const Handed& handed, const fs::path& path, bool sanitized) {
  const Object object = ObjectReader(text_of(path), path).read();
  const std::string space = "stage_" + number_text(handed.stage);
  const std::string own = fmt::format("_ZN11flashladder{}{}", space.size(), space);
  for (const Symbol& symbol : object.symbols) {
    if (symbol.name.empty()) continue;
    const std::string name = readable(symbol.name);
    const auto refused = [&](std::string_view why) {
      return fmt::format("{}: {} {}", place_of_name(handed, name), name, why);
    };
    if (!symbol.defined && !is_allowed(symbol.name, name)) {
      return refused(
          symbol.name.find("11flashladder") != std::string::npos
              ? "is no part of a lab: a stage is made of the words of the headers that its skeleton "
                "includes"
              : "is not for a stage to call: it computes, takes memory from its workspace, may print, and "
                "leaves "
                "files, processes, threads but OpenMP's, clocks, signals and the environment alone");
    }
    if (!sanitized && symbol.writable && !is_of_headers(symbol.name) && !symbol.name.starts_with("_ZGV"))
      return refused(
          "would outlive a call: a stage keeps nothing from one call to the next, take memory from the "
          "workspace, or make it constexpr");
    if (symbol.chosen ||
        (symbol.strong && symbol.defined && !symbol.name.starts_with(own) &&
         (!symbol.name.starts_with("_Z") || symbol.name.find("11flashladder") != std::string::npos ||
          symbol.name.starts_with("_Zn") || symbol.name.starts_with("_Zd") ||
          symbol.name.starts_with("_ZSt") || symbol.name.starts_with("_ZNSt"))))
      return refused("takes the place of something that is not this file's");
  }
  // One function makes std::cout ready where <iostream> is included, one is the compiler's own.
  const auto expected = std::ranges::count_if(object.symbols, [](const Symbol& symbol) {
    return symbol.name == "_ZStL8__ioinit" || symbol.name == "__tsan_init";
  });
  if (object.runs_early > static_cast<std::uint64_t>(expected) && !sanitized) {
    return fmt::format("{}: something in it runs before its first call: a stage runs when it is called",
                       handed.file);
  }
  return "";
}

}  // namespace flashladder::lab
