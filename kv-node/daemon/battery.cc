#include "kv-node/daemon/battery.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace cairn::kv {
namespace {

bool FileSays(const std::filesystem::path& path, std::string_view word) {
  std::ifstream file(path);
  std::string content;
  return file >> content && content == word;
}

}  // namespace

bool HasBattery(const std::string& power_supply_dir) {
  std::error_code error;
  for (const auto& supply : std::filesystem::directory_iterator(power_supply_dir, error)) {
    if (FileSays(supply.path() / "type", "Battery") &&
        !FileSays(supply.path() / "scope", "Device")) {
      return true;
    }
  }
  return false;
}

}  // namespace cairn::kv
