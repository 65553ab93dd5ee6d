// A directory that is removed with everything in it at the end of a test. TMPDIR chooses where.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/check.h"

namespace cairn::test {

class TempDir {
 public:
  TempDir() {
    path_ = (std::filesystem::temp_directory_path() / "cairn-test-XXXXXX").string();
    CAIRN_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace cairn::test
