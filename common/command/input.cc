#include "common/command/input.h"

#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

namespace cairn::cli {
namespace {

// Of a file that has more than `bytes_min`: how many, where that can be known.
std::string SizeOf(std::FILE* file, std::int64_t bytes_min) {
  struct stat info {};
  const bool known = ::fstat(::fileno(file), &info) == 0 && info.st_size > bytes_min;
  return known ? fmt::format("{}", info.st_size) : fmt::format("more than {}", bytes_min);
}

}  // namespace

absl::StatusOr<std::string> ReadAll(std::FILE* file, const std::string& name,
                                    std::int64_t bytes_max) {
  std::string out;
  char buffer[1 << 16];
  std::size_t size = 0;
  while ((size = std::fread(buffer, 1, sizeof(buffer), file)) > 0) {
    out.append(buffer, size);
    if (static_cast<std::int64_t>(out.size()) > bytes_max) {
      return InvalidArgument("read {}: it has {} bytes: at most {}", name, SizeOf(file, bytes_max),
                             bytes_max);
    }
  }
  if (std::ferror(file) != 0) return ErrnoStatus(errno, fmt::format("read {}", name));
  return out;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, std::int64_t bytes_max) {
  const FileHandle file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return ErrnoStatus(errno, fmt::format("open {}", path));
  return ReadAll(file.get(), path, bytes_max);
}

std::string InputName(const std::string& path) { return path == "-" ? "standard input" : path; }

absl::StatusOr<std::string> ReadInput(const std::string& path, std::int64_t bytes_max) {
  return path == "-" ? ReadAll(stdin, InputName(path), bytes_max) : ReadFile(path, bytes_max);
}

}  // namespace cairn::cli
