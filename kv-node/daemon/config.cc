#include "kv-node/daemon/config.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include <google/protobuf/text_format.h>

#include "common/base/check.h"
#include "common/daemon/config_file.h"
#include "common/rpc/unix_socket.h"
#include "kv-node/device/file_device.h"
#include "kv-node/engine/engine.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

constexpr std::uint32_t kSocketModeMax = 0777;
constexpr std::int64_t kMemoryBytesMin = std::int64_t{64} << 10;
constexpr std::int64_t kMemoryBytesMax = std::int64_t{64} << 30;
constexpr std::int32_t kAttachedSessionsMaxMax = 1024;

struct KeyText {
  std::string_view key;
  std::string_view text;
};
// In words of somebody who edits the file; in the order of the fields.
constexpr std::array kKeyTexts = {
    KeyText{"data_dir",
            "Directory of the store: the extent file with the keys and values, and the metadata.\n"
            "One daemon at a time uses it."},
    KeyText{
        "socket_path",
        "Unix socket for compute nodes. A second one, with \".handshake\" behind its name, gives\n"
        "tokens."},
    KeyText{"socket_mode", "Mode of both sockets: who may connect. 0600: only the owner."},
    KeyText{"extent_file_bytes",
            "Size of the extent file when it is created: flash for all conversations. Fixed from\n"
            "then on."},
    KeyText{"prefill_extent_file",
            "Whether to write the extent file in full when it is created: slow once, and every\n"
            "checkpoint's flush is about three times faster."},
    KeyText{"io_engine", "How to reach the flash: \"auto\", \"io_uring\" or \"threads\"."},
    KeyText{"queue_depth", "Requests that the flash works on at once, 1 to 4096."},
    KeyText{
        "pending_bytes_max",
        "Memory for entries that are not on flash yet, over all conversations. Smaller: more and\n"
        "shorter writes."},
    KeyText{"io_bytes_max",
            "Memory for reads and writes in flight and for replies that are not sent yet."},
    KeyText{"attached_sessions_max",
            "Conversations that may be in use at once; each costs memory for its rows."},
    KeyText{"log_level", "One of trace, debug, info, warn, error."},
};

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before threads start
  return value != nullptr ? value : "";
}

std::string DefaultDataDir(const Environment& environment) {
  if (environment.is_root) return "/var/lib/cairn";
  if (!environment.xdg_state_home.empty()) return environment.xdg_state_home + "/cairn";
  return environment.home + "/.local/state/cairn";
}

std::string DefaultSocketPath(const Environment& environment, const std::string& data_dir) {
  if (!environment.xdg_runtime_dir.empty()) return environment.xdg_runtime_dir + "/cairn/kv.sock";
  if (environment.is_root) return "/run/cairn/kv.sock";
  return data_dir + "/kv.sock";
}

absl::Status CheckRange(std::string_view key, std::int64_t value, std::int64_t min,
                        std::int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument("{} is {}: it must be {} to {}", key, value, min, max);
}

absl::Status Validate(const KvNodeConfig& config) {
  if (config.data_dir().empty() || config.data_dir().front() != '/') {
    return InvalidArgument("data_dir is \"{}\": give an absolute path", config.data_dir());
  }
  CAIRN_RETURN_IF_ERROR(rpc::CheckSocketPath(config.socket_path()));
  CAIRN_RETURN_IF_ERROR(CheckRange("socket_mode", config.socket_mode(), 0, kSocketModeMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("extent_file_bytes", config.extent_file_bytes(),
                                   kExtentFileBytesMin, kStorePageCountMax * kPageBytes));
  const absl::Status engine = ParseIoEngine(config.io_engine()).status();
  if (!engine.ok()) return Annotate(engine, "io_engine");
  CAIRN_RETURN_IF_ERROR(CheckRange("queue_depth", config.queue_depth(), 1, kQueueDepthMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("pending_bytes_max", config.pending_bytes_max(), kMemoryBytesMin,
                                   kMemoryBytesMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("io_bytes_max", config.io_bytes_max(), kMemoryBytesMin, kMemoryBytesMax));
  return CheckRange("attached_sessions_max", config.attached_sessions_max(), 1,
                    kAttachedSessionsMaxMax);
}

std::string ValueText(const KvNodeConfig& config, const google::protobuf::FieldDescriptor* field) {
  // Modes are written in octal by people.
  if (field->number() == KvNodeConfig::kSocketModeFieldNumber) {
    return fmt::format("0{:o}", config.socket_mode());
  }
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string value;
  printer.PrintFieldValueToString(config, field, -1, &value);
  return value;
}

std::string CommentLines(std::string_view text) {
  std::string out = "# ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "# ";
  }
  return out + "\n";
}

}  // namespace

Environment ProcessEnvironment() {
  return {Variable("HOME"), Variable("XDG_STATE_HOME"), Variable("XDG_RUNTIME_DIR"),
          ::geteuid() == 0};
}

KvNodeConfig DefaultConfig(const Environment& environment) {
  const EngineOptions engine;
  KvNodeConfig config;
  config.set_data_dir(DefaultDataDir(environment));
  config.set_socket_path(DefaultSocketPath(environment, config.data_dir()));
  config.set_socket_mode(rpc::kSocketModeDefault);
  config.set_extent_file_bytes(kExtentFileBytesDefault);
  config.set_prefill_extent_file(true);
  config.set_io_engine("auto");
  config.set_queue_depth(kQueueDepthDefault);
  config.set_pending_bytes_max(engine.pending_bytes_max);
  config.set_io_bytes_max(engine.io_bytes_max);
  config.set_attached_sessions_max(engine.attached_sessions_max);
  config.set_log_level("info");
  return config;
}

absl::StatusOr<KvNodeConfig> MakeConfig(const CommandLine& command_line,
                                        const Environment& environment) {
  KvNodeConfig config = DefaultConfig(environment);
  const std::string default_socket = config.socket_path();
  if (command_line.config_path) {
    CAIRN_RETURN_IF_ERROR(ReadConfigFile(*command_line.config_path, config));
  }
  if (command_line.data_dir) config.set_data_dir(*command_line.data_dir);
  if (command_line.socket_path) {
    config.set_socket_path(*command_line.socket_path);
  } else if (config.socket_path() == default_socket) {
    config.set_socket_path(DefaultSocketPath(environment, config.data_dir()));
  }
  if (command_line.log_level) config.set_log_level(*command_line.log_level);
  CAIRN_RETURN_IF_ERROR(Validate(config));
  return config;
}

std::string ConfigText(const KvNodeConfig& config, Comments comments) {
  const google::protobuf::Descriptor* descriptor = KvNodeConfig::descriptor();
  CAIRN_CHECK_EQ(descriptor->field_count(), static_cast<int>(kKeyTexts.size()));
  std::string out;
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    const KeyText& key = kKeyTexts.at(static_cast<std::size_t>(i));
    CAIRN_CHECK_EQ(field->name(), key.key);
    if (comments == Comments::kYes) {
      if (i > 0) out += "\n";
      out += CommentLines(key.text);
    }
    out += fmt::format("{}: {}\n", field->name(), ValueText(config, field));
  }
  return out;
}

}  // namespace cairn::kv
