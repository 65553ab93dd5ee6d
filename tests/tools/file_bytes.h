// Reads whole files.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace cairn::test {

// All that a file holds; nothing if there is none. At once: through an iterator of characters a
// sanitizer looks at each.
inline std::string BytesOfFile(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return {};
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

}  // namespace cairn::test
