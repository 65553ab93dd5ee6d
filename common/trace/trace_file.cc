#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "common/trace/trace.h"

namespace cairn {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileCloser>;

}  // namespace

absl::Status WriteTraceFile(const std::string& path, const Trace& trace) {
  CAIRN_RETURN_IF_ERROR(Annotate(trace.Validate(), fmt::format("write {}", path)));
  const std::string bytes = EncodeTrace(trace);
  FileHandle file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) return ErrnoStatus(errno, fmt::format("create {}", path));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  const int write_error = errno;
  const bool closed = std::fclose(file.release()) == 0;
  if (written && closed) return absl::OkStatus();
  const int error_number = written ? errno : write_error;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  return ErrnoStatus(error_number, fmt::format("write {} bytes to {}", bytes.size(), path));
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& path) {
  const FileHandle file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return ErrnoStatus(errno, fmt::format("open {}", path));
  struct stat info {};
  if (::fstat(::fileno(file.get()), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("stat {}", path));
  }
  if (info.st_size > kTraceBytesMax) {
    return InvalidArgument("read {}: {} bytes; a trace has at most {}", path, info.st_size,
                           kTraceBytesMax);
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  const std::size_t size = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (std::ferror(file.get()) != 0) return ErrnoStatus(errno, fmt::format("read {}", path));
  bytes.resize(size);
  absl::StatusOr<Trace> trace = DecodeTrace(bytes);
  if (!trace.ok()) return Annotate(trace.status(), fmt::format("read {}", path));
  return trace;
}

}  // namespace cairn
