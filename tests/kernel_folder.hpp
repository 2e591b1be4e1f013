#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace flashladder {

/// A folder for kept kernels that is there while this is.
class KernelFolder {
 public:
  KernelFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("flashladder_kernels_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    name_in_environment(path_.string());
  }
  KernelFolder(const KernelFolder&) = delete;
  KernelFolder& operator=(const KernelFolder&) = delete;
  ~KernelFolder() {
    unsetenv("FLASHLADDER_CACHE");
    std::filesystem::remove_all(path_);
  }
  void name_in_environment(const std::string& path) const {
    setenv("FLASHLADDER_CACHE", path.c_str(), /*overwrite=*/1);
  }
  const std::filesystem::path& path() const { return path_; }
  /// All that is in it.
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) found.push_back(entry.path());
    return found;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace flashladder
