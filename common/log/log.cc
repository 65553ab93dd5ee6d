#include "common/log/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace cairn {
namespace {

std::optional<spdlog::level::level_enum> ParseLevel(std::string_view name) {
  static constexpr std::pair<std::string_view, spdlog::level::level_enum> kLevels[] = {
      {"trace", spdlog::level::trace},
      {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},
      {"warn", spdlog::level::warn},
      {"error", spdlog::level::err}};
  for (const auto& [known, level] : kLevels) {
    if (known == name) return level;
  }
  return std::nullopt;
}

absl::StatusOr<spdlog::sink_ptr> MakeSink(const std::string& path) {
  if (path.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  // The library throws, and says less.
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("open log {}", path));
  ::close(fd);
  constexpr std::size_t kOlderFiles = 1;
  try {
    return std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
        path, static_cast<std::size_t>(kLogFileBytesMax), kOlderFiles);
  } catch (const spdlog::spdlog_ex& error) {
    return Internal("open log {}: {}", path, error.what());
  }
}

// Beside the file.
const spdlog::sink_ptr& ProblemSink() {
  static const spdlog::sink_ptr sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  return sink;
}

}  // namespace

void ShowProblems(bool shown) {
  ProblemSink()->set_level(shown ? spdlog::level::warn : spdlog::level::off);
}

absl::Status CheckLogLevel(const std::string& level) {
  if (ParseLevel(level).has_value()) return absl::OkStatus();
  return InvalidArgument("log_level is '{}': it must be trace, debug, info, warn or error", level);
}

absl::Status InitLogging(const std::string& program, const std::string& level,
                         const std::string& path) {
  CAIRN_RETURN_IF_ERROR(CheckLogLevel(level));
  CAIRN_ASSIGN_OR_RETURN(spdlog::sink_ptr sink, MakeSink(path));
  auto logger = std::make_shared<spdlog::logger>(program, std::move(sink));
  ShowProblems(false);
  if (!path.empty()) logger->sinks().push_back(ProblemSink());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n: %v");
  logger->set_level(*ParseLevel(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(logger);
  return absl::OkStatus();
}

}  // namespace cairn
