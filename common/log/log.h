// Logging: one line per event with key=value fields, to stderr. Never payloads, prompts or
// generated text. Control characters of what a line quotes are escaped.
//   LogInfo("checkpoint session={} token_count={} bytes={}", ...);
#pragma once

#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/base/printable.h"
#include "common/base/status.h"

namespace cairn {

// Call once, first thing in main. `level` is one of trace, debug, info, warn, error;
// INVALID_ARGUMENT otherwise.
absl::Status InitLogging(const std::string& program, const std::string& level);

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
