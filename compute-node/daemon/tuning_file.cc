#include "compute-node/daemon/tuning_file.h"

#include <sys/utsname.h>

#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include "cairn/config/v1/tuning.pb.h"
#include "common/base/range.h"
#include "common/daemon/config_file.h"
#include "compute-node/model/config.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kFormat = 1;

// The first line of /proc/cpuinfo that names the processor: of x86-64, or of arm64.
std::optional<std::string> CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name") && !line.starts_with("CPU part")) continue;
    const std::size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    if (start != std::string::npos) return line.substr(start);
  }
  return std::nullopt;
}

absl::Status IsForAnother(std::string_view what, std::string_view there, std::string_view here) {
  return FailedPrecondition(
      "it is for {} {}, and this is {}: run cairn-tune here, or set no "
      "tuning_path",
      what, there, here);
}

absl::Status CheckIsFor(const config::v1::Tuning& file, const TunedFor& here,
                        const SessionOptions& options) {
  const std::string digest = absl::BytesToHexString(here.model_digest);
  const std::pair<std::string_view, std::pair<std::string_view, std::string_view>> same[] = {
      {"version", {file.cairn_version(), here.cairn_version}},
      {"the model", {file.model_digest(), digest}},
      {"machines of kind", {file.machine(), here.machine}},
      {"the processor", {file.cpu(), here.cpu}},
      {"kv_format", {file.kv_format(), KvFormatName(options.kv_format)}}};
  for (const auto& [what, names] : same) {
    if (names.first != names.second) return IsForAnother(what, names.first, names.second);
  }
  CAIRN_RETURN_IF_ERROR(CheckBetween("dram_budget_bytes", file.dram_budget_bytes(),
                                     std::int64_t{1} << 20, std::int64_t{1} << 40));
  if (file.dram_budget_bytes() > options.dram_budget_bytes) {
    return FailedPrecondition(
        "it is for a dram_budget_bytes of {}, and {} is configured: configure as much, or run "
        "cairn-tune with --dram-budget {}",
        file.dram_budget_bytes(), options.dram_budget_bytes, options.dram_budget_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<TunedEntry> ReadEntry(const config::v1::TunedEntry& from,
                                     const SessionOptions& options) {
  if (from.conversation_count() != 1) {
    return InvalidArgument("conversation_count is {}: it must be 1", from.conversation_count());
  }
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("context_tokens", from.context_tokens(), 1, kContextLengthMax));
  TunedEntry entry;
  entry.context_tokens = from.context_tokens();
  entry.policy.name = from.policy();
  entry.policy.select_percent = from.select_percent();
  entry.policy.select_tokens_min = from.select_tokens_min();
  entry.policy.select_tokens_max = from.select_tokens_max();
  entry.policy.cluster_target_entries = from.cluster_target_entries();
  entry.small_key_bits = from.small_key_bits();
  CAIRN_RETURN_IF_ERROR(entry.On(options).Validate());
  return entry;
}

absl::StatusOr<Tuning> Read(const std::string& path, const TunedFor& here,
                            const SessionOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(path));
  config::v1::Tuning file;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &file);
  if (!parsed.ok()) {
    // Further lines show where.
    const std::string said(parsed.message());
    return InvalidArgument("it is no file of cairn-tune: {}", said.substr(0, said.find('\n')));
  }
  if (file.format_version() != kFormat) {
    return InvalidArgument("its format is {}, and this version reads {}", file.format_version(),
                           kFormat);
  }
  CAIRN_RETURN_IF_ERROR(CheckIsFor(file, here, options));
  if (file.entries().empty()) return InvalidArgument("it has no entries");
  std::vector<TunedEntry> entries;
  std::set<std::int64_t> lengths;
  for (const config::v1::TunedEntry& from : file.entries()) {
    absl::StatusOr<TunedEntry> entry = ReadEntry(from, options);
    CAIRN_RETURN_IF_ERROR(Annotate(entry.status(), fmt::format("entry {}", entries.size() + 1)));
    if (!lengths.insert(entry->context_tokens).second) {
      return InvalidArgument("two entries have {} context_tokens", entry->context_tokens);
    }
    entries.push_back(*std::move(entry));
  }
  return Tuning(std::move(entries));
}

}  // namespace

TunedFor ThisDevice(std::string model_digest) {
  utsname name{};
  TunedFor here;
  here.cairn_version = CAIRN_VERSION;
  here.model_digest = std::move(model_digest);
  if (uname(&name) == 0) here.machine = name.machine;
  here.cpu = CpuName().value_or(here.machine);
  return here;
}

absl::StatusOr<Tuning> ReadTuningFile(const std::string& path, const TunedFor& here,
                                      const SessionOptions& options) {
  absl::StatusOr<Tuning> tuning = Read(path, here, options);
  CAIRN_RETURN_IF_ERROR(Annotate(tuning.status(), fmt::format("tuning_path {}", path)));
  return tuning;
}

}  // namespace cairn::compute
