#include "common/log/log.h"

#include <array>
#include <string_view>

#include <spdlog/sinks/stdout_sinks.h>

namespace cairn {

absl::Status InitLogging(const std::string& program, const std::string& level) {
  struct Level {
    std::string_view name;
    spdlog::level::level_enum value;
  };
  static constexpr std::array kLevels = {
      Level{"trace", spdlog::level::trace}, Level{"debug", spdlog::level::debug},
      Level{"info", spdlog::level::info}, Level{"warn", spdlog::level::warn},
      Level{"error", spdlog::level::err}};
  for (const Level& known : kLevels) {
    if (known.name != level) continue;
    auto logger = std::make_shared<spdlog::logger>(
        program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n: %v");
    logger->set_level(known.value);
    logger->flush_on(spdlog::level::trace);
    spdlog::set_default_logger(logger);
    return absl::OkStatus();
  }
  return InvalidArgument("log level '{}' is unknown: use trace, debug, info, warn or error", level);
}

}  // namespace cairn
