#include "compute-node/daemon/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <thread>

#include "common/base/range.h"
#include "common/base/thread.h"
#include "common/rpc/unix_socket.h"
#include "compute-node/http/listen_address.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/chat/chat_template.h"
#include "compute-node/model/gguf/model_digest.h"
#include "compute-node/service/kept_conversations.h"
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

// In the order of the fields.
constexpr std::array kKeys = {
    ConfigKey{"model_path", "The GGUF file to serve. No default: here or --model."},
    ConfigKey{"socket_path", "Unix socket for apps."},
    ConfigKey{"socket_mode", "Mode of that socket: who may connect. 0600: only the owner.", true},
    ConfigKey{
        "kv",
        "Where keys and values live: \"node\", the KV node behind kv_socket_path, or \"ram\",\n"
        "this process's memory: nothing survives it."},
    ConfigKey{"kv_socket_path", "Unix socket of cairn-kv-node."},
    ConfigKey{
        "kv_wait_seconds",
        "Seconds to wait for the KV node at start, and when it goes away later. They\n"
        "count from when it went away: what begins after them fails at once until it is back.\n"
        "One that is on its way, as while it makes its store, is waited for as long as that "
        "takes."},
    ConfigKey{"kv_ram_bytes",
              "With kv: \"ram\": memory for all conversations. Used for what is written only."},
    ConfigKey{"threads", "Threads that compute. 0: one for each processor."},
    ConfigKey{"context_tokens_max",
              "Tokens of a conversation, at most. 0: as many as the model was made for."},
    ConfigKey{"prefill_chunk_tokens",
              "Tokens of a prompt that are computed in one pass. Larger: faster, more memory."},
    ConfigKey{"window_tokens_max", "Newest tokens that stay in memory, 64 to 128."},
    ConfigKey{"fetch_slice_bytes", "One read from the KV node; three of them are in memory."},
    ConfigKey{"dram_budget_bytes",
              "All memory for keys and values of a conversation; bounds the replay buffer and the\n"
              "clusters that are kept."},
    ConfigKey{"kv_format",
              "How keys and values are stored: \"f16\", \"f32\", \"q8\" (8 bits a number) or "
              "\"q4\" (keys "
              "of 8 bits, values of 4)."},
    ConfigKey{"realtime_priority",
              "1 to 99: the thread that takes the KV node's answers runs with this realtime\n"
              "priority (SCHED_RR); needs CAP_SYS_NICE or RLIMIT_RTPRIO. 0: no."},
    ConfigKey{
        "generation_count_max",
        "Generations that are computed at once, 1 to 16; more wait. Each has the memory of its\n"
        "own conversation."},
    ConfigKey{
        "packed_weights_dir",
        "Folder for the model's weights as the kernels read them: packed once, then mapped; safe\n"
        "to delete. \"none\": packed in memory at every start."},
    ConfigKey{"turn_template",
              "What `cairn chat` puts around a turn of a model without a chat template; {} is the\n"
              "turn."},
    ConfigKey{"turn_stop", "Texts that end a turn in `cairn chat`; one key for each."},
    ConfigKey{"chat_template",
              "How messages become a prompt: \"chatml\", \"llama2\", \"llama3\", \"mistral-v1\",\n"
              "\"mistral-v3\", \"mistral-v3-tekken\", \"mistral-v7\", \"mistral-v7-tekken\",\n"
              "\"zephyr\", \"deepseek3\"; \"none\": no messages. Empty: as the model file says."},
    ConfigKey{
        "http_listen",
        "Loopback address of the OpenAI-compatible HTTP endpoint, as \"127.0.0.1:8080\". Empty:\n"
        "none."},
    ConfigKey{"http_api_key_path",
              "File with the key that HTTP clients must send. Empty: none is asked for."},
    ConfigKey{
        "http_kept_conversation_count_max",
        "Conversations of HTTP clients that stay on flash, 0 to 64: a request that begins like\n"
        "one of them computes only what is new. 0: every request is computed whole."},
    ConfigKey{
        "request_memory_bytes",
        "Memory for all requests, over HTTP and gRPC, until they run: eight times their bytes.\n"
        "One may take three quarters of it; what has no room is told to try again."},
    ConfigKey{
        "policy",
        "Which stored keys and values each token of a new conversation attends, unless its client\n"
        "says otherwise. \"full\": all, so that each token reads the whole conversation.\n"
        "\"dynakv\": those that the token needs most, as many as the next three keys say."},
    ConfigKey{"select_percent",
              "What a token attends, in percent of the conversation's tokens; \"full\" has no use\n"
              "for this and the next four."},
    ConfigKey{"select_tokens_min", "But at least so many tokens."},
    ConfigKey{"select_tokens_max", "And at most so many."},
    ConfigKey{"cluster_target_entries", "Entries of a cluster, on average, 1 to 64."},
    ConfigKey{"clustering_seed",
              "Of what is random in clustering: equal seeds give equal clusters."},
    ConfigKey{
        "estimate_percent",
        "\"dynakv\": so many percent of the clusters that a token does not read, 0 to 100, are\n"
        "attended by the means of their keys and values."},
    ConfigKey{
        "select_ahead",
        "\"dynakv\": whether layers choose by a forecast that is made while the layer before\n"
        "is computed, so that what they attend is read in time."},
    ConfigKey{
        "predict_selection",
        "Whether a token's computation asks for what the next layer will probably need while\n"
        "it computes this one. Answers do not depend on it."},
    ConfigKey{"keep_clusters",
              "Whether clusters that tokens attended last stay in memory, as far as half of\n"
              "dram_budget_bytes has room beside the index. Answers do not depend on it."},
    ConfigKey{"recluster_prompts",
              "Whether clusters of a prompt longer than prefill_chunk_tokens are made again over\n"
              "all of it: better answers, and everything is read and written once more. It takes\n"
              "up to 2.4 times its room on flash meanwhile; without that it keeps those it has."},
    ConfigKey{"local_prompts",
              "For measurements: tokens of a prompt attend only the piece of it that is computed\n"
              "with them, so that very long ones take little time. Answers are wrong."},
    ConfigKey{"trace_path",
              "File for a timeline of what is computed, waited for and read, for Chrome's trace\n"
              "viewer or Perfetto; at most 256 MiB. Empty: none."},
    ConfigKey{
        "log_path",
        "File for the log; \"stderr\": standard error. \"auto\": standard error, but where that\n"
        "is a terminal cairn-compute-node.log in /var/log/cairn for root, else in "
        "~/.local/state/cairn."},
    ConfigKey{"log_level", "One of trace, debug, info, warn, error."},
};

absl::Status Validate(const ComputeNodeConfig& config) {
  CAIRN_RETURN_IF_ERROR(CheckSocketKeys(config.socket_path(), config.socket_mode()));
  CAIRN_RETURN_IF_ERROR(CheckLogKeys(config.log_path(), config.log_level()));
  if (config.kv() != "node" && config.kv() != "ram") {
    return InvalidArgument("kv is '{}': it must be node or ram", config.kv());
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
  --kv node|ram            where keys and values live: the KV node, or this process's memory
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
  cairn-compute-node --model model.gguf --kv ram       without cairn-kv-node
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
  config.set_threads(0);
  config.set_context_tokens_max(session.context_tokens_max);
  config.set_prefill_chunk_tokens(session.prefill_chunk_tokens);
  config.set_window_tokens_max(session.window_tokens_max);
  config.set_fetch_slice_bytes(session.fetch_slice_bytes);
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
  config.set_cluster_target_entries(session.policy.selection.cluster_target_entries);
  config.set_clustering_seed(session.policy.selection.seed);
  config.set_estimate_percent(static_cast<float>(session.policy.selection.estimate_percent));
  config.set_select_ahead(session.policy.selection.select_ahead);
  config.set_predict_selection(session.predict_selection);
  config.set_keep_clusters(session.keep_clusters);
  config.set_recluster_prompts(session.recluster_prompts);
  config.set_local_prompts(session.local_prompts);
  config.set_trace_path("");
  config.set_log_path(std::string(kLogAuto));
  config.set_log_level("info");
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
  return config;
}

std::string ConfigText(const ComputeNodeConfig& config, Comments comments) {
  return PrintConfig(config, kKeys, comments);
}

SessionOptions ToSessionOptions(const ComputeNodeConfig& config) {
  SessionOptions options;
  options.context_tokens_max = config.context_tokens_max();
  options.kv_format = ParseKvFormat(config.kv_format()).value_or(KvFormat::kF16);
  options.prefill_chunk_tokens = config.prefill_chunk_tokens();
  options.window_tokens_max = config.window_tokens_max();
  options.fetch_slice_bytes = config.fetch_slice_bytes();
  options.dram_budget_bytes = config.dram_budget_bytes();
  options.predict_selection = config.predict_selection();
  options.keep_clusters = config.keep_clusters();
  options.recluster_prompts = config.recluster_prompts();
  options.local_prompts = config.local_prompts();
  options.policy.name = config.policy();
  options.policy.selection = {.select_percent = static_cast<double>(config.select_percent()),
                              .select_tokens_min = config.select_tokens_min(),
                              .select_tokens_max = config.select_tokens_max(),
                              .cluster_target_entries = config.cluster_target_entries(),
                              .seed = config.clustering_seed(),
                              .estimate_percent = static_cast<double>(config.estimate_percent()),
                              .select_ahead = config.select_ahead()};
  return options;
}

}  // namespace cairn::compute
