#include "clients/cairn/chat_history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "common/daemon/paths.h"

namespace cairn::cli {
namespace {

constexpr mode_t kOwnerOnly = 0600;

std::string Escape(std::string_view input) {
  std::string line;
  for (const char c : input) {
    if (c == '\\') {
      line += "\\\\";
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line + "\n";
}

std::string Unescape(std::string_view line) {
  std::string input;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      input += line[i];
    } else {
      ++i;
      input += line[i] == 'n' ? '\n' : line[i];
    }
  }
  return input;
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, kOwnerOnly)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  std::int64_t size() const {
    struct stat info {};
    return ::fstat(fd_, &info) == 0 ? info.st_size : 0;
  }
  bool Write(std::string_view text) const {
    return ::write(fd_, text.data(), text.size()) == std::ssize(text);
  }

 private:
  const int fd_;
};

// As the daemons make it, which keep what is as private there.
absl::Status MakePrivateDirectory(const std::filesystem::path& path) {
  CAIRN_RETURN_IF_ERROR(MakeDirectory(path.parent_path().string(), "above the chat's history"));
  constexpr mode_t kOwnersFolder = 0700;
  if (::mkdir(path.c_str(), kOwnersFolder) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("make directory {}", path.string()));
}

// The end of the file, from the beginning of a line on.
absl::StatusOr<std::string> ReadEnd(const File& file, const std::string& path) {
  const std::int64_t size = file.size();
  const std::int64_t start = std::max<std::int64_t>(0, size - kHistoryFileBytesMax);
  std::string text(static_cast<std::size_t>(size - start), '\0');
  const ssize_t got = ::pread(file.fd(), text.data(), text.size(), start);
  if (got < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
  text.resize(static_cast<std::size_t>(got));
  if (start > 0) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

}  // namespace

std::string DefaultHistoryPath() {
  Environment environment = ProcessEnvironment();
  environment.is_root = false;  // what root typed is not the daemon's
  if (environment.home.empty() && environment.xdg_state_home.empty()) return "";
  return DefaultStateDir(environment) + "/chat_history";
}

absl::StatusOr<std::vector<std::string>> ChatHistory::Load() {
  if (path_.empty()) return std::vector<std::string>();
  const File file(path_, O_RDONLY | O_CLOEXEC);
  if (file.fd() < 0 && errno == ENOENT) return std::vector<std::string>();
  if (file.fd() < 0) return ErrnoStatus(errno, fmt::format("open {}", path_));
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadEnd(file, path_));
  std::vector<std::string> inputs;
  std::string_view rest = text;
  // What has no line end is of a write that did not come to its end.
  for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos;) {
    inputs.push_back(Unescape(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  if (std::ssize(inputs) > kHistoryInputsMax) {
    inputs.erase(inputs.begin(), inputs.end() - kHistoryInputsMax);
  }
  if (!inputs.empty()) newest_ = inputs.back();
  return inputs;
}

absl::Status ChatHistory::Replace(const std::vector<std::string>& inputs) const {
  std::string text;
  for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {
    // Room for many more, so that this is done seldom.
    if (std::ssize(text) + std::ssize(*input) > kHistoryFileBytesMax / 2) break;
    text.insert(0, Escape(*input));
  }
  const std::string other = fmt::format("{}.{}", path_, ::getpid());
  {
    const File file(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    if (file.fd() < 0) return ErrnoStatus(errno, fmt::format("open {}", other));
    if (!file.Write(text)) return ErrnoStatus(errno, fmt::format("write {}", other));
  }
  if (std::rename(other.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("rename {} to {}", other, path_));
}

absl::Status ChatHistory::Add(const std::string& input) {
  if (path_.empty() || input == newest_ || input.empty() ||
      std::ssize(input) > kHistoryInputBytesMax) {
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(MakePrivateDirectory(std::filesystem::path(path_).parent_path()));
  bool full = false;
  {
    const File file(path_, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
    if (file.fd() < 0) return ErrnoStatus(errno, fmt::format("open {}", path_));
    // It may be older than this.
    if (::fchmod(file.fd(), kOwnerOnly) != 0) {
      return ErrnoStatus(errno, fmt::format("make {} private", path_));
    }
    // One write, so that those of two chats do not mix.
    if (!file.Write(Escape(input))) return ErrnoStatus(errno, fmt::format("write {}", path_));
    full = file.size() > kHistoryFileBytesMax;
  }
  newest_ = input;
  if (!full) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> inputs, Load());
  return Replace(inputs);
}

}  // namespace cairn::cli
