// A folder that is gone with its owner.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace tandem::test {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-native-XXXXXX").string();
    require(mkdtemp(name.data()) != nullptr, ErrorKind::kIo, "no temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const void* data, size_t bytes) const {
    std::string file = path(name);
    FILE* out = std::fopen(file.c_str(), "wb");
    require(out != nullptr && std::fwrite(data, 1, bytes, out) == bytes, ErrorKind::kIo, "could not write a test file");
    std::fclose(out);
    return file;
  }

 private:
  std::string path_;
};

}  // namespace tandem::test
