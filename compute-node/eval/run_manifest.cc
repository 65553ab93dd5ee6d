#include "compute-node/eval/run_manifest.h"

#include <stdlib.h>
#include <sys/times.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace cairn::eval {
namespace {

// user nice system idle iowait irq softirq steal; what follows is in the first two already.
constexpr std::size_t kTickKinds = 8;
constexpr std::size_t kIdle = 3;
constexpr std::size_t kWaiting = 4;
constexpr double kShareSteps = 10000;  // a share has 4 digits

}  // namespace

std::optional<ProcessorTicks> ParseProcessorTicks(std::string_view line) {
  std::istringstream fields{std::string(line)};
  std::string name;
  std::array<std::int64_t, kTickKinds> ticks{};
  fields >> name;
  for (std::int64_t& kind : ticks) fields >> kind;
  if (fields.fail() || name != "cpu") return std::nullopt;
  ProcessorTicks sums;
  for (const std::int64_t kind : ticks) sums.all += kind;
  sums.busy = sums.all - ticks[kIdle] - ticks[kWaiting];
  return sums;
}

std::optional<double> OtherShare(const ProcessorTicks& start, const ProcessorTicks& end,
                                 std::int64_t own_ticks) {
  const std::int64_t passed = end.all - start.all;
  if (passed <= 0) return std::nullopt;
  // The kernel counts a process's time more finely than the processors'.
  const std::int64_t other = std::max<std::int64_t>(0, end.busy - start.busy - own_ticks);
  const double share = static_cast<double>(other) / static_cast<double>(passed);
  return std::round(share * kShareSteps) / kShareSteps;
}

RunManifest::RunManifest(const Program& program)
    : program_(program), start_time_(std::chrono::system_clock::now()), start_(LoadNow()) {}

RunManifest::Load RunManifest::LoadNow() {
  Load load;
  ::getloadavg(load.averages.data(), static_cast<int>(load.averages.size()));
  std::ifstream stat("/proc/stat");
  std::string line;
  if (std::getline(stat, line)) load.processors = ParseProcessorTicks(line);
  tms own{};
  ::times(&own);
  load.own_ticks = own.tms_utime + own.tms_stime;
  return load;
}

nlohmann::ordered_json RunManifest::Contention() const {
  const Load now = LoadNow();
  nlohmann::ordered_json json = {{"load_average_start", start_.averages},
                                 {"load_average_end", now.averages}};
  std::optional<double> share;
  if (start_.processors.has_value() && now.processors.has_value()) {
    share = OtherShare(*start_.processors, *now.processors, now.own_ticks - start_.own_ticks);
  }
  json["other_cpu_share"] = nullptr;
  if (share.has_value()) json["other_cpu_share"] = *share;
  return json;
}

nlohmann::ordered_json RunManifest::ToJson() const {
  utsname system{};
  ::uname(&system);
  return {{"version", program_.version},
          {"commit", program_.commit},
          {"start_time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(start_time_))},
          {"command_line", program_.command_line},
          {"machine",
           fmt::format("{}, {} processors", system.machine, std::thread::hardware_concurrency())},
          {"kernel", system.release},
          {"contention", Contention()}};
}

}  // namespace cairn::eval
