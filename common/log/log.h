// Logging: one line per event with key=value fields, to stderr or to a file. Never payloads,
// prompts or generated text. Control characters of what a line quotes are escaped.
//   LogInfo("checkpoint session={} token_count={} bytes={}", ...);
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/base/printable.h"
#include "common/base/status.h"

namespace cairn {

// A log file that has reached this becomes the one with ".1" in front of its suffix, in place of an
// older one: a daemon's logs take twice this at most.
inline constexpr std::int64_t kLogFileBytesMax = std::int64_t{8} << 20;

// `level` is one of trace, debug, info, warn, error; INVALID_ARGUMENT otherwise.
absl::Status CheckLogLevel(const std::string& level);

// Call once, first thing in main. `path` empty: to stderr; else what is written goes behind what
// the file holds. INVALID_ARGUMENT for the level, or what opening the file failed with.
absl::Status InitLogging(const std::string& program, const std::string& level,
                         const std::string& path = "");

// Whether warnings and errors go to stderr too while the log is a file: for somebody who waits
// there for a start. They do not unless this is called. Any thread.
void ShowProblems(bool shown);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(EscapeControls(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(EscapeControls(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(EscapeControls(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(EscapeControls(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace cairn
