#include "common/labs/folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <vector>

#include "common/error.hpp"
#include "common/io/whole_file.hpp"
#include "common/labs/rules.hpp"

namespace flashladder::lab {
namespace {

namespace fs = std::filesystem;

const fs::path sources = FLASHLADDER_SOURCE_DIR;
constexpr int lab_format = 1;

fs::path source_path(const Stage& stage) {
  const fs::path folder = folder_of(stage);
  return folder / (fs::exists(folder / "attention.cu") ? "attention.cu" : "attention.cpp");
}

/// The files that a stage may have beside its source, and that are a part of it.
std::vector<fs::path> parts_of(const Stage& stage) {
  std::vector<fs::path> parts;
  for (const char* name : {"kernel.hpp", "policy.hpp", "launch.hpp"}) {
    if (const fs::path part = folder_of(stage) / name; fs::exists(part)) parts.push_back(part);
  }
  return parts;
}

/// What an error in source_of(stage) is said to be in.
std::string source_name(const Stage& stage) {
  std::string name = source_path(stage).string();
  for (const fs::path& part : parts_of(stage))
    name += ", with " + part.filename().string() + " in the place of its #include";
  return name;
}

/// Adds a source, and all that it includes of the stages.
void add_with_includes(const fs::path& file, std::vector<fs::path>& files) {
  if (std::ranges::find(files, file) != files.end()) return;
  files.push_back(file);
  constexpr std::string_view include = "#include \"";
  std::istringstream lines(text_of(file));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(include) || !line.substr(include.size()).starts_with("stages/")) continue;
    add_with_includes(sources / line.substr(include.size(), line.rfind('"') - include.size()), files);
  }
}

/// "00-02, 10"
std::string all_labs() {
  std::vector<const Stage*> found;
  std::ranges::copy_if(stages(), std::back_inserter(found),
                       [](const Stage* stage) { return has_lab(*stage); });
  return numbers_text(found);
}

/// What compiles the lab outside the grader.
std::string cmake_lists(const Lab& lab) {
  constexpr std::string_view text =
      R"(# Compiles {file} by hand, for an editor, a debugger, or to see the compiler's messages, and grades it:
#   cmake -G Ninja -B build && cmake --build build   compiles; build/attention runs it once on a small problem
#   ctest --test-dir build --verbose                 grades, as ./ladder lab grade does
# The grade does not depend on this file.
cmake_minimum_required(VERSION 3.25)
project(lab_{number} LANGUAGES CXX)

set(LADDER "{ladder}" CACHE PATH "The folder of FlashLadder: where ./ladder is")
# What ./ladder has built; an installed package takes precedence where CMAKE_PREFIX_PATH names one.
find_package(flashladder {version} QUIET HINTS ${{LADDER}}/{build})
if(NOT flashladder_FOUND)
  message(FATAL_ERROR "There is no built FlashLadder in ${{LADDER}}: say where it is with cmake -B build "
                      "-DLADDER=FOLDER, and build it there with ./ladder setup")
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON) # for editors
add_executable(attention {file})
{as_cxx}target_compile_options(attention PRIVATE -Wall -Wextra)
target_link_libraries(attention PRIVATE flashladder::lab)

enable_testing()
add_test(NAME grade COMMAND ${{LADDER}}/ladder lab grade ${{CMAKE_CURRENT_SOURCE_DIR}})
)";
  return fmt::format(
      fmt::runtime(text), fmt::arg("file", lab.file), fmt::arg("number", number_text(*lab.stage)),
      fmt::arg("ladder", sources.string()), fmt::arg("version", FLASHLADDER_VERSION),
      fmt::arg("build", fs::path(FLASHLADDER_BUILD_DIR).lexically_relative(sources).string()),
      fmt::arg(
          "as_cxx",
          lab.file.ends_with(".cu")
              ? "set_source_files_properties(attention.cu PROPERTIES LANGUAGE CXX COMPILE_OPTIONS -xc++)\n"
              : ""));
}

std::string lab_json(const Lab& lab) {
  const nlohmann::ordered_json json = {
      {"format", lab_format},
      {"stage", lab.stage->number},
      {"name", lab.stage->name},
      {"file", lab.file},
      {"ladder", {{"version", FLASHLADDER_VERSION}, {"lab", version_of(lab)}}}};
  return json.dump(2) + "\n";
}

}  // namespace

const Stage* Lab::before() const {
  return stage->before == stage->number ? nullptr : &find_stage(stage->before);
}

std::string Lab::source_before() const {
  return read_source(source_of(*before()), source_name(*before())).reference;
}

fs::path folder_of(const Stage& stage) {
  return sources / "stages" / folder_name(stage);
}

std::string source_of(const Stage& stage) {
  const fs::path path = source_path(stage);
  std::string text = text_of(path);
  for (const fs::path& part : parts_of(stage)) {
    const std::string include =
        fmt::format("#include \"{}\"\n", part.lexically_relative(sources).generic_string());
    const std::string inside = text_of(part);
    const std::size_t at = text.find(include), first = inside.find("\n#include ");
    if (at == text.npos || first == inside.npos)
      throw Error(fmt::format("{} does not include {}, or that includes nothing", path.string(),
                              part.filename().string()));
    text.replace(at, include.size(), inside, first + 1);
    // The kernel, which is in its place by now, includes the policy too.
    for (std::size_t again; (again = text.find(include)) != text.npos;) text.erase(again, include.size());
  }
  return text;
}

bool has_lab(const Stage& stage) {
  return fs::exists(folder_of(stage) / "lab.md");
}

Lab find_lab(const Stage& stage) {
  if (!has_lab(stage))
    throw UsageError(
        fmt::format("there is no lab for stage {}: there are labs for {}", label(stage), all_labs()));
  const fs::path handout = folder_of(stage) / "lab.md";
  const std::string name = source_name(stage);
  Lab lab{&stage, source_path(stage).filename().string(), read_source(source_of(stage), name),
          read_handout(text_of(handout), handout.string())};
  for (const Region& region : lab.source.regions) {
    if (region.lines == 0)
      throw Error(fmt::format("{}: there is no code between '// lab: {}' and its end", name, region.task));
  }
  if (lab.source.regions.empty())
    throw Error(fmt::format("{} has no '// lab:' marker, so there is nothing to be written", name));
  return lab;
}

std::string version_of(const Lab& lab) {
  std::vector<fs::path> files;
  add_with_includes(source_path(*lab.stage), files);
  if (lab.before() != nullptr) add_with_includes(source_path(*lab.before()), files);
  for (const Stage* stage = lab.stage;; stage = &find_stage(stage->before)) {  // a claim says what changed
    files.push_back(folder_of(*stage) / "claim.cpp");
    if (stage->before == stage->number) break;
  }
  // What the student's file is compiled with and run by, and what judges it.
  for (const char* folder : {"attention", "check", "claims", "kernel", "labs", "ptx", "simt"}) {
    for (const auto& entry : fs::recursive_directory_iterator(sources / "common" / folder)) {
      if (entry.path().extension() == ".hpp" || entry.path().extension() == ".cpp")
        files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  std::string all;
  for (const fs::path& file : files)
    all += file.lexically_relative(sources).string() + "\n" + text_of(file);
  return fmt::format("{:016x}", hash_of(all));
}

void write_folder(const Lab& lab, const std::string& readme, const fs::path& folder) {
  const Uninterrupted whole;
  std::error_code error;
  const fs::path target = fs::absolute(folder, error).lexically_normal();
  if (error)
    throw Error("the folder that you are in is gone: cd into one that is there, then call it again");
  const fs::path place = target.has_filename() ? target : target.parent_path();  // "x/" is "x"
  if (fs::exists(fs::symlink_status(place)))
    throw UsageError(fmt::format("{} is there already: name a folder that is not", folder.string()));
  const fs::path part = place.string() + fmt::format(".part{}", getpid());
  if (!fs::create_directory(part, error)) {
    throw Error(fmt::format("cannot make a folder in {}{}: name another place",
                            place.parent_path().string(), error ? " (" + error.message() + ")" : ""));
  }
  try {
    write_file(part / "README.md", readme);
    write_file(part / lab.file, lab.source.skeleton);
    write_file(part / "CMakeLists.txt", cmake_lists(lab));
    write_file(part / lab_file, lab_json(lab));
    if (lab.before() != nullptr) {
      fs::create_directory(part / "previous");
      write_file(part / "previous" / source_path(*lab.before()).filename(), lab.source_before());
    }
    fs::rename(part, place);
  } catch (...) {
    fs::remove_all(part, error);
    throw;
  }
}

Submission read_folder(const fs::path& folder) {
  const std::string shown = folder.string();
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw UsageError(fmt::format("{} is no folder{}: name the one that ./ladder lab new has written", shown,
                                 fs::exists(folder, error) ? " but a file" : ", and nothing is there"));
  }
  const bool has_lab_file = fs::is_regular_file(folder / lab_file, error);
  if (error == std::errc::permission_denied)
    throw UsageError(fmt::format("cannot look into {} (permission denied): make it readable", shown));
  if (!has_lab_file) {
    throw UsageError(
        fmt::format("{} is not the folder of a lab, which has a {}: make one with ./ladder lab new STAGE "
                    "FOLDER",
                    shown, lab_file));
  }
  const auto json = nlohmann::json::parse(text_of(folder / lab_file, most_source_bytes), nullptr, false);
  const auto number = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number_integer() ? json[key].get<int>()
                                                                                   : -1;
  };
  const auto text = [](const nlohmann::json& of, const char* key) {
    return of.is_object() && of.contains(key) && of[key].is_string() ? of[key].get<std::string>() : "?";
  };
  if (number("format") != lab_format || number("stage") < 0) {
    throw UsageError(
        fmt::format("{} is damaged, or of a newer ladder: make a new folder with ./ladder lab new STAGE "
                    "FOLDER and copy your file into it",
                    (folder / lab_file).string()));
  }
  Lab lab = find_lab(find_stage(number("stage")));
  const nlohmann::json made_by = json.value("ladder", nlohmann::json::object());
  if (text(made_by, "lab") != version_of(lab) || text(made_by, "version") != FLASHLADDER_VERSION) {
    throw UsageError(
        fmt::format("{} was made by another version of the ladder ({}, lab {}; this is {}, lab {}): make a "
                    "new one with ./ladder lab new {} FOLDER and copy your {} into it",
                    shown, text(made_by, "version"), text(made_by, "lab"), FLASHLADDER_VERSION,
                    version_of(lab), number_text(*lab.stage), lab.file));
  }
  const fs::path path = folder / lab.file;
  const fs::file_type type = fs::symlink_status(path).type();
  if (type == fs::file_type::not_found)
    throw UsageError(fmt::format("there is no {} in {}: it is the file that is graded", lab.file, shown));
  if (type != fs::file_type::regular) {
    throw UsageError(fmt::format("{} is {}: put the file itself there", path.string(),
                                 type == fs::file_type::symlink ? "a link" : "no regular file"));
  }
  std::string content = text_of(path, most_source_bytes + 1);  // more is refused, and need not be read
  return {std::move(lab), path.string(), std::move(content)};
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string text_of(const fs::path& path, std::size_t most) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  for (char part[1 << 16]; file && text.size() < most;) {
    file.read(part, static_cast<std::streamsize>(std::min(sizeof part, most - text.size())));
    text.append(part, static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof() && !file)
    throw Error(fmt::format("cannot read {}: {}", path.string(), std::generic_category().message(errno)));
  return text;
}

}  // namespace flashladder::lab
