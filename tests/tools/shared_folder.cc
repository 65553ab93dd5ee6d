#include "tests/tools/shared_folder.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/base/check.h"

namespace cairn::test {

std::string SharedFolder() {
  const char* variable = std::getenv("CAIRN_SHARED");  // NOLINT(concurrency-mt-unsafe): tests only
  const std::filesystem::path folder =
      variable != nullptr ? std::filesystem::path(variable)
                          : std::filesystem::path(CAIRN_SOURCE_DIR).parent_path() / "shared";
  return std::filesystem::exists(folder / "models" / "README.md") ? folder.string() : "";
}

std::string CommandOutput(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  CAIRN_CHECK(pipe != nullptr);
  std::string out;
  std::array<char, 65536> buffer{};
  size_t size = 0;
  while ((size = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    out.append(buffer.data(), size);
  }
  CAIRN_CHECK_EQ(pclose(pipe), 0);
  return out;
}

}  // namespace cairn::test
