// RunManifest says what a run ran on, so that its figures can be judged and repeated: the program,
// the machine, and how busy that was with other things.
//
// Threading:  one thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace cairn::eval {

// Ticks of all processors since the machine was started.
struct ProcessorTicks {
  std::int64_t busy = 0;  // also those that other virtual machines took
  std::int64_t all = 0;
};
// Of the first line of /proc/stat; nullopt: it is another line.
std::optional<ProcessorTicks> ParseProcessorTicks(std::string_view line);

// The share of the processors' time between two moments that others took, when `own_ticks` of it
// was this process's; nullopt: no time passed.
std::optional<double> OtherShare(const ProcessorTicks& start, const ProcessorTicks& end,
                                 std::int64_t own_ticks);

class RunManifest {
 public:
  struct Program {
    std::string version;
    std::string commit;  // of the sources; "unknown"
    std::vector<std::string> command_line;
  };
  // The run starts now.
  explicit RunManifest(const Program& program);

  // As of now.
  nlohmann::ordered_json ToJson() const;

 private:
  struct Load {
    std::array<double, 3> averages{};  // over 1, 5 and 15 minutes
    std::optional<ProcessorTicks> processors;
    std::int64_t own_ticks = 0;
  };
  static Load LoadNow();
  nlohmann::ordered_json Contention() const;

  const Program program_;
  const std::chrono::system_clock::time_point start_time_;
  const Load start_;
};

}  // namespace cairn::eval
