#include "compute-node/daemon/config.h"

#include <array>
#include <charconv>

#include "cairn/config/v1/compute_node.descriptor.h"
#include "common/base/range.h"
#include "common/base/thread.h"
#include "common/rpc/unix_socket.h"
#include "compute-node/daemon/embedded_kv_node.h"
#include "compute-node/http/listen_address.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/chat/chat_template.h"
#include "compute-node/model/gguf/model_digest.h"
#include "compute-node/service/kept_conversations.h"
#include "compute-node/service/memory_budget.h"
#include "compute-node/session/forward_scheduler.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kKvWaitSecondsDefault = 30;
constexpr std::int32_t kKvWaitSecondsMax = 3600;
constexpr std::int64_t kKvRamBytesMin = std::int64_t{1} << 20;
constexpr std::int64_t kKvRamBytesDefault = std::int64_t{8} << 30;
constexpr std::int64_t kKvRamBytesMax = std::int64_t{1} << 42;
constexpr std::int32_t kGenerationsMaxDefault = 8;
// Not that of a PolicyChoice, `full`, which is what a conversation without a stored policy was made
// with.
constexpr char kPolicyDefault[] = "dynakv";

absl::Status Validate(const ComputeNodeConfig& config) {
  CAIRN_RETURN_IF_ERROR(CheckSocketKeys(config.socket_path(), config.socket_mode()));
  CAIRN_RETURN_IF_ERROR(CheckLogKeys(config.log_path(), config.log_level()));
  if (config.kv() != "node" && config.kv() != "embedded" && config.kv() != "ram") {
    return InvalidArgument("kv is '{}': it must be node, embedded or ram", config.kv());
  }
  if (config.kv() == "node") {
    CAIRN_RETURN_IF_ERROR(
        Annotate(rpc::CheckSocketPath(config.kv_socket_path()), "kv_socket_path"));
  }
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("kv_wait_seconds", config.kv_wait_seconds(), 0, kKvWaitSecondsMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("kv_ram_bytes", config.kv_ram_bytes(), kKvRamBytesMin, kKvRamBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("threads", config.threads(), 0, kThreadCountMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("realtime_priority", config.realtime_priority(), 0, kRealtimePriorityMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("generation_count_max", config.generation_count_max(), 1, kStepSequencesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("http_kept_conversation_count_max",
                                     config.http_kept_conversation_count_max(), 0,
                                     kKeptConversationsMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("request_memory_bytes", config.request_memory_bytes(),
                                     kRequestMemoryBytesMin, kRequestMemoryBytesMax));
  if (!ParseKvFormat(config.kv_format()).has_value()) {
    return InvalidArgument("kv_format is '{}': it must be {}", config.kv_format(), kKvFormatNames);
  }
  if (config.turn_template().find("{}") == std::string::npos) {
    return InvalidArgument("turn_template is '{}': it must contain {{}}, the turn",
                           config.turn_template());
  }
  if (!config.chat_template().empty() && config.chat_template() != kNoChatTemplate) {
    CAIRN_RETURN_IF_ERROR(
        Annotate(ChatTemplate::ByName(config.chat_template()).status(), "chat_template"));
  }
  if (!config.http_listen().empty()) {
    CAIRN_RETURN_IF_ERROR(
        Annotate(ParseListenAddress(config.http_listen()).status(), "http_listen"));
  } else if (!config.http_api_key_path().empty()) {
    return InvalidArgument("http_api_key_path is '{}', but http_listen is empty: set it too",
                           config.http_api_key_path());
  }
  return ToSessionOptions(config).Validate();
}

// The file of an embedded store, or that there is none without it.
absl::Status CheckKvConfig(const ComputeNodeConfig& config, const Environment& environment) {
  if (config.kv() == "embedded") {
    return Annotate(EmbeddedKvConfig(config.kv_config_path(), environment).status(),
                    "kv_config_path");
  }
  if (config.kv_config_path().empty()) return absl::OkStatus();
  return InvalidArgument("kv_config_path is '{}', but kv is '{}': it is for kv: \"embedded\"",
                         config.kv_config_path(), config.kv());
}

absl::Status SetThreads(const std::string& text, ComputeNodeConfig& config) {
  std::int32_t threads = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return InvalidArgument("flag --threads is '{}': it must be a number", text);
  }
  config.set_threads(threads);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments) {
  CommandLine out;
  const std::array own = {ValueFlag{"--model", &out.model_path},
                          ValueFlag{"--kv", &out.kv},
                          ValueFlag{"--kv-socket", &out.kv_socket_path},
                          ValueFlag{"--threads", &out.threads},
                          ValueFlag{"--chat-template", &out.chat_template},
                          ValueFlag{"--http", &out.http_listen},
                          ValueFlag{"--trace", &out.trace_path}};
  CAIRN_RETURN_IF_ERROR(ParseDaemonFlags(arguments, own, out));
  return out;
}

std::string HelpText() {
  return
      R"(cairn-compute-node runs a language model and serves text generation to apps;
cairn-kv-node keeps the keys and values of conversations.

usage: cairn-compute-node --model FILE [flags]
  --config FILE            configuration file (protobuf text format)
  --model FILE             GGUF file to serve; overrides the file, as the following do
  --socket PATH            Unix socket for apps
  --kv node|embedded|ram   where keys and values live: the KV node; a store on flash that this
                           process has for itself; or this process's memory
  --kv-socket PATH         Unix socket of cairn-kv-node
  --threads N              threads that compute; 0: one for each processor
  --chat-template NAME     how messages become a prompt: chatml, llama2, llama3, mistral-v1,
                           mistral-v3, mistral-v3-tekken, mistral-v7, mistral-v7-tekken, zephyr,
                           deepseek3; none; without the flag as the model file says
  --http ADDRESS           serve OpenAI's HTTP API too, on loopback: 127.0.0.1:8080
  --trace FILE             write a timeline of each generation to FILE, for Perfetto
  --log FILE               file for the log, or stderr; without the flag standard error, but where
                           that is a terminal a file, which is named there
  --log-level LEVEL        trace, debug, info, warn or error
  --print-config           print the configuration that would be used, and end
  --print-default-config   print a configuration file with every key and its default, and end
  --version                print the version, and end
  --help                   print this, and end

SIGTERM or SIGINT: running generations are stopped and stored, exit code 0. A second one: ends at
once, exit code 130. Exit code 1: it could not start, 2: the command line or the configuration is
wrong; the last line on stderr says why.

examples:
  cairn-compute-node --model model.gguf &
  cairn-compute-node --model model.gguf --http 127.0.0.1:8080 --log /tmp/cairn.log &
  cairn-compute-node --model model.gguf --kv embedded  without cairn-kv-node, on its store
)";
}

ComputeNodeConfig DefaultConfig(const Environment& environment) {
  const SessionOptions session;
  ComputeNodeConfig config;
  config.set_model_path("");
  config.set_socket_path(DefaultSocketPath(environment, "compute.sock"));
  config.set_socket_mode(rpc::kSocketModeDefault);
  config.set_kv("node");
  config.set_kv_socket_path(DefaultSocketPath(environment, "kv.sock"));
  config.set_kv_wait_seconds(kKvWaitSecondsDefault);
  config.set_kv_ram_bytes(kKvRamBytesDefault);
  config.set_kv_config_path("");
  config.set_threads(0);
  config.set_context_tokens_max(session.context_tokens_max);
  config.set_prefill_chunk_tokens(session.prefill_chunk_tokens);
  config.set_dram_budget_bytes(session.dram_budget_bytes);
  config.set_kv_format(std::string(KvFormatName(session.kv_format)));
  config.set_realtime_priority(0);
  config.set_generation_count_max(kGenerationsMaxDefault);
  config.set_packed_weights_dir(DefaultCacheDirectory());
  config.set_turn_template("{}\n");
  config.set_chat_template("");
  config.set_http_listen("");
  config.set_http_api_key_path("");
  config.set_http_kept_conversation_count_max(kKeptConversationsDefault);
  config.set_request_memory_bytes(kRequestMemoryBytesDefault);
  config.set_policy(kPolicyDefault);
  config.set_select_percent(static_cast<float>(session.policy.selection.select_percent));
  config.set_select_tokens_min(session.policy.selection.select_tokens_min);
  config.set_select_tokens_max(session.policy.selection.select_tokens_max);
  config.set_recluster_prompts(session.recluster_prompts);
  config.set_tuning_path("");
  config.set_trace_path("");
  config.set_log_path(std::string(kLogAuto));
  config.set_log_level("info");
  config::v1::ComputeNodeExperiment& experiment = *config.mutable_experiment();
  experiment.set_window_tokens_max(session.window_tokens_max);
  experiment.set_fetch_slice_bytes(session.fetch_slice_bytes);
  experiment.set_cluster_target_entries(session.policy.selection.cluster_target_entries);
  experiment.set_clustering_seed(session.policy.selection.seed);
  experiment.set_estimate_percent(static_cast<float>(session.policy.selection.estimate_percent));
  experiment.set_select_ahead(session.policy.selection.select_ahead);
  experiment.set_predict_selection(session.predict_selection);
  experiment.set_keep_clusters(session.keep_clusters);
  experiment.set_local_prompts(session.local_prompts);
  experiment.set_small_key_bits(session.small_key_bits);
  return config;
}

absl::StatusOr<ComputeNodeConfig> MakeConfig(const CommandLine& command_line,
                                             const Environment& environment) {
  ComputeNodeConfig config = DefaultConfig(environment);
  ConfigPlaces places;
  if (command_line.config_path) {
    CAIRN_RETURN_IF_ERROR(ReadConfigFile(*command_line.config_path, config, places));
  }
  OverrideKey("model_path", command_line.model_path, config, places);
  OverrideKey("socket_path", command_line.socket_path, config, places);
  OverrideKey("kv", command_line.kv, config, places);
  OverrideKey("kv_socket_path", command_line.kv_socket_path, config, places);
  OverrideKey("chat_template", command_line.chat_template, config, places);
  OverrideKey("http_listen", command_line.http_listen, config, places);
  OverrideKey("trace_path", command_line.trace_path, config, places);
  OverrideKey("log_path", command_line.log_path, config, places);
  OverrideKey("log_level", command_line.log_level, config, places);
  if (command_line.threads) {
    CAIRN_RETURN_IF_ERROR(SetThreads(*command_line.threads, config));
    places.erase("threads");
  }
  CAIRN_RETURN_IF_ERROR(AtItsPlace(Validate(config), places));
  CAIRN_RETURN_IF_ERROR(AtItsPlace(CheckKvConfig(config, environment), places));
  return config;
}

std::string DefaultConfigText(const Environment& environment) {
  return PrintConfigWithComments(DefaultConfig(environment), config::kComputeNodeDescriptor);
}

SessionOptions ToSessionOptions(const ComputeNodeConfig& config) {
  SessionOptions options;
  options.context_tokens_max = config.context_tokens_max();
  options.kv_format = ParseKvFormat(config.kv_format()).value_or(KvFormat::kF16);
  options.prefill_chunk_tokens = config.prefill_chunk_tokens();
  options.window_tokens_max = config.experiment().window_tokens_max();
  options.fetch_slice_bytes = config.experiment().fetch_slice_bytes();
  options.dram_budget_bytes = config.dram_budget_bytes();
  options.predict_selection = config.experiment().predict_selection();
  options.keep_clusters = config.experiment().keep_clusters();
  options.recluster_prompts = config.recluster_prompts();
  options.local_prompts = config.experiment().local_prompts();
  options.small_key_bits = config.experiment().small_key_bits();
  options.policy.name = config.policy();
  options.policy.selection = {
      .select_percent = static_cast<double>(config.select_percent()),
      .select_tokens_min = config.select_tokens_min(),
      .select_tokens_max = config.select_tokens_max(),
      .cluster_target_entries = config.experiment().cluster_target_entries(),
      .seed = config.experiment().clustering_seed(),
      .estimate_percent = static_cast<double>(config.experiment().estimate_percent()),
      .select_ahead = config.experiment().select_ahead()};
  return options;
}

}  // namespace cairn::compute
