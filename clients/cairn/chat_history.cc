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
#include "common/rpc/unix_socket.h"

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

UniqueFd OpenFile(const std::string& path, int flags) {
  return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC, kOwnerOnly));
}

std::int64_t SizeOf(const UniqueFd& file) {
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 ? info.st_size : 0;
}

bool WriteAtOnce(const UniqueFd& file, std::string_view text) {
  return ::write(file.get(), text.data(), text.size()) == std::ssize(text);
}

// As the daemons make it, which keep what is as private there.
absl::Status MakePrivateDirectory(const std::filesystem::path& path) {
  CAIRN_RETURN_IF_ERROR(MakeDirectory(path.parent_path().string(), "above the chat's history"));
  constexpr mode_t kOwnersFolder = 0700;
  if (::mkdir(path.c_str(), kOwnersFolder) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("make directory {}", path.string()));
}

// The end of the file, from the beginning of a line on.
absl::StatusOr<std::string> ReadEnd(const UniqueFd& file, const std::string& path) {
  const std::int64_t size = SizeOf(file);
  const std::int64_t start = std::max<std::int64_t>(0, size - kHistoryFileBytesMax);
  std::string text(static_cast<std::size_t>(size - start), '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), start);
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
  const UniqueFd file = OpenFile(path_, O_RDONLY);
  if (!file.valid() && errno == ENOENT) return std::vector<std::string>();
  if (!file.valid()) return ErrnoStatus(errno, fmt::format("open {}", path_));
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
    const UniqueFd file = OpenFile(other, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    if (!file.valid()) return ErrnoStatus(errno, fmt::format("open {}", other));
    if (!WriteAtOnce(file, text)) return ErrnoStatus(errno, fmt::format("write {}", other));
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
    const UniqueFd file = OpenFile(path_, O_WRONLY | O_CREAT | O_APPEND);
    if (!file.valid()) return ErrnoStatus(errno, fmt::format("open {}", path_));
    // It may be older than this.
    if (::fchmod(file.get(), kOwnerOnly) != 0) {
      return ErrnoStatus(errno, fmt::format("make {} private", path_));
    }
    // One write, so that those of two chats do not mix.
    if (!WriteAtOnce(file, Escape(input)))
      return ErrnoStatus(errno, fmt::format("write {}", path_));
    full = SizeOf(file) > kHistoryFileBytesMax;
  }
  newest_ = input;
  if (!full) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> inputs, Load());
  return Replace(inputs);
}

}  // namespace cairn::cli
