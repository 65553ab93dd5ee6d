#include "compute-node/daemon/compute_daemon.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <absl/strings/escaping.h>

#include "common/base/error_reason.h"
#include "common/base/thread.h"
#include "common/daemon/program.h"
#include "common/daemon/sd_notify.h"
#include "common/log/log.h"
#include "common/rpc/starting_mark.h"
#include "compute-node/daemon/embedded_kv_node.h"
#include "compute-node/daemon/tuning_file.h"
#include "compute-node/kv_client/grpc_kv_node.h"
#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/service/kept_conversations.h"
#include "compute-node/service/stored_sessions.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kConnectInterval{200};
// How soon a signal is noticed while the model loads.
constexpr std::chrono::milliseconds kSignalCheckInterval{50};

// Tokens of one pass: a model with a short context needs no more scratch memory than that.
absl::StatusOr<std::int64_t> BatchTokens(const std::string& model_path,
                                         const SessionOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(model_path));
  CAIRN_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*file));
  return std::min(options.prefill_chunk_tokens, ContextTokensMax(options, config));
}

bool MayComeUp(const absl::Status& status) {
  return status.code() == absl::StatusCode::kNotFound ||
         status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

absl::StatusOr<ChatTemplate> ChooseChatTemplate(const std::string& chosen, const GgufFile& file) {
  if (chosen == kNoChatTemplate) {
    return NotFound("cairn-compute-node was started with chat_template \"none\": send text");
  }
  if (!chosen.empty()) return ChatTemplate::ByName(chosen);
  absl::StatusOr<ChatTemplate> found =
      ChatTemplate::Recognise(file.FindString(kChatTemplateKey).value_or(""));
  if (found.ok()) return found;
  // Many models were not trained on conversations.
  if (absl::IsNotFound(found.status())) {
    LogInfo("chat template: {}", Message(found.status()));
  } else {
    LogWarning("chat template: {}", Message(found.status()));
  }
  return found;
}

// Only one process has the socket. The end of a long path tells more than its beginning.
std::string CreatorName(const std::string& socket_path) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(socket_path, error);
  // Escaped: a name that is sent must be UTF-8, that of a folder need not.
  std::string name =
      fmt::format("cairn-compute-node {}", absl::CEscape(error ? socket_path : path.string()));
  const auto size_max = static_cast<std::size_t>(kCreatorBytesMax);
  if (name.size() > size_max) name.erase(0, name.size() - size_max);
  return name;
}

// A KV node that makes its store takes as long as that takes. Asks systemd for more time meanwhile.
class StartingKvNode {
 public:
  explicit StartingKvNode(const std::string& socket_path) : socket_path_(socket_path) {}

  bool IsThere() {
    if (!rpc::IsStarting(socket_path_)) return false;
    if (asked_time_ == Clock::time_point()) {
      LogInfo("cairn-kv-node is starting socket={}: waiting as long as that takes", socket_path_);
      ShowStart("cairn-kv-node is starting: waiting as long as that takes");
    }
    const Clock::time_point now = Clock::now();
    if (now - asked_time_ < std::chrono::seconds(1)) return true;
    asked_time_ = now;
    SdNotify("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=waiting for cairn-kv-node");
    return true;
  }

 private:
  const std::string& socket_path_;
  Clock::time_point asked_time_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeDaemon>> ComputeDaemon::Start(
    const ComputeNodeConfig& config) {
  std::unique_ptr<ComputeDaemon> daemon(new ComputeDaemon(config));
  CAIRN_RETURN_IF_ERROR(MakeSocketDirectory(config.socket_path()));
  CAIRN_ASSIGN_OR_RETURN(
      daemon->server_, ComputeServer::Start({.socket_path = config.socket_path(),
                                             .socket_mode = config.socket_mode(),
                                             .generation_count_max = config.generation_count_max()},
                                            daemon->state_));
  CAIRN_RETURN_IF_ERROR(daemon->StartHttp());
  daemon->load_thread_ = StartThread("cn-load", [raw = daemon.get()] { raw->Load(); });
  return daemon;
}

absl::Status ComputeDaemon::StartHttp() {
  if (config_.http_listen().empty()) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(config_.http_listen()));
  std::string key;
  if (!config_.http_api_key_path().empty()) {
    CAIRN_ASSIGN_OR_RETURN(key, ReadApiKey(config_.http_api_key_path()));
  }
  api_ = std::make_unique<OpenAiApi>(state_, server_->queue(), std::move(key));
  CAIRN_ASSIGN_OR_RETURN(http_, HttpServer::Start(address, *api_, state_.request_memory()));
  // Only one process has the port.
  kept_label_ = fmt::format("{}http {}", kOwnLabelStart, http_->address().ToText());
  return absl::OkStatus();
}

ComputeDaemon::~ComputeDaemon() {
  stopping_.store(1);
  watch_.reset();
  http_.reset();
  server_.reset();
  if (load_thread_.joinable()) load_thread_.join();
}

absl::Status ComputeDaemon::WaitUntilReady(const std::atomic<int>& signal) {
  while (loaded_.wait_for(kSignalCheckInterval) != std::future_status::ready) {
    if (signal.load(std::memory_order_relaxed) != 0) return Cancelled("stopped while loading");
  }
  CAIRN_RETURN_IF_ERROR(loaded_.get());
  server_->SetServing(true);
  WatchKvNode();
  return absl::OkStatus();
}

void ComputeDaemon::WatchKvNode() {
  const absl::StatusOr<std::shared_ptr<Runtime>> runtime = state_.runtime();
  if (!runtime.ok() || config_.kv() != "node") return;
  watch_ = std::make_unique<KvWatch>(*(*runtime)->node, state_,
                                     [this](bool serves) { server_->SetServing(serves); });
}

std::string ComputeDaemon::Description() const {
  const absl::StatusOr<std::shared_ptr<Runtime>> runtime = state_.runtime();
  if (!runtime.ok()) return Message(runtime.status());
  const ModelConfig& config = (*runtime)->model->config();
  const absl::StatusOr<KvStats> stats = (*runtime)->node->Stats();
  return fmt::format("socket={} model={} context_tokens={} kv={} io_engine={}",
                     config_.socket_path(), config_.model_path(),
                     ContextTokensMax((*runtime)->options, config), config_.kv(),
                     stats.ok() ? stats->io_engine : "unknown") +
         (http_ != nullptr ? fmt::format(" http={}", http_->address().ToText()) : "");
}

ComputeDaemon::Stopped ComputeDaemon::Stop() {
  stopping_.store(1);
  const absl::StatusOr<std::shared_ptr<Runtime>> runtime = state_.runtime();
  if (runtime.ok()) (*runtime)->node->StopWaiting(kStopKvWaitMax);
  if (http_ != nullptr) http_->Refuse();
  if (!server_->StopGenerations(kStopTimeMax)) {
    LogError(
        "stopping without a generation that did not end in {} ms: its conversation is at its last "
        "checkpoint, what was generated since is lost",
        kStopTimeMax.count());
    return Stopped::kLost;
  }
  const std::int64_t lost_token_count = state_.lost_token_count();
  if (lost_token_count > 0) {
    LogError(
        "stopping without {} tokens that clients have seen: the KV node was not there to store "
        "them; their conversations are at their last checkpoints",
        lost_token_count);
  }
  // The libraries wait for their calls without a limit. Nothing is lost with what is cut off.
  auto stopped = std::make_shared<std::promise<void>>();
  std::thread thread = StartThread("cn-stop", [this, stopped] {
    StopCalls();
    stopped->set_value();
  });
  const bool all_ended =
      stopped->get_future().wait_for(kCallsStopTimeMax) == std::future_status::ready;
  if (all_ended) {
    thread.join();
  } else {
    thread.detach();
    LogWarning("stopping without calls that did not end in {} ms", kCallsStopTimeMax.count());
  }
  if (lost_token_count > 0) return Stopped::kLost;
  return all_ended ? Stopped::kAll : Stopped::kCallsLeft;
}

void ComputeDaemon::AwaitUnopened() {
  if (config_.kv() == "embedded" && loaded_.valid()) loaded_.wait_for(kUnopenedTimeMax);
}

void ComputeDaemon::StopCalls() {
  watch_.reset();
  if (http_ != nullptr) http_->Stop(kHttpStopTimeMax);
  server_->EndCalls(kGrpcStopTimeMax);
  http_.reset();
  server_.reset();
}

void ComputeDaemon::Load() {
  const Clock::time_point start = Clock::now();
  absl::StatusOr<std::shared_ptr<Runtime>> runtime = MakeRuntime();
  const absl::Status status = runtime.status();
  if (status.ok()) {
    LogInfo("loaded model={} bytes={} time_ms={}", config_.model_path(), state_.size_bytes(),
            std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count());
    state_.SetReady(*std::move(runtime));
  }
  load_end_.set_value(status);
}

absl::StatusOr<std::shared_ptr<Runtime>> ComputeDaemon::MakeRuntime() {
  auto runtime = std::make_shared<Runtime>();
  runtime->options = ToSessionOptions(config_);
  runtime->turn_template = config_.turn_template();
  runtime->turn_stop.assign(config_.turn_stop().begin(), config_.turn_stop().end());
  ModelOptions model_options;
  model_options.thread_count =
      config_.threads() != 0
          ? config_.threads()
          : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadCountMax);
  CAIRN_ASSIGN_OR_RETURN(model_options.batch_tokens_max,
                         BatchTokens(config_.model_path(), runtime->options));
  if (config_.packed_weights_dir() != "none") {
    model_options.packed_directory = config_.packed_weights_dir();
  }
  model_options.progress = [this](std::int64_t done_bytes, std::int64_t total_bytes) {
    state_.SetLoading(done_bytes, total_bytes);
  };
  CAIRN_ASSIGN_OR_RETURN(runtime->node, ReachKvNode());
  runtime->creator = CreatorName(config_.socket_path());
  DeleteLeftBehind(*runtime->node, runtime->creator);
  CAIRN_ASSIGN_OR_RETURN(runtime->model, Model::Load(config_.model_path(), model_options));
  CAIRN_ASSIGN_OR_RETURN(runtime->tokenizer, Tokenizer::FromGguf(runtime->model->file()));
  runtime->chat = ChooseChatTemplate(config_.chat_template(), runtime->model->file());
  runtime->options.prefill_chunk_tokens = model_options.batch_tokens_max;
  runtime->scheduler =
      std::make_unique<ForwardScheduler>(*runtime->model, model_options.batch_tokens_max);
  CAIRN_ASSIGN_OR_RETURN(runtime->served.base,
                         BaseIdentity(*runtime->model, runtime->options.kv_format));
  CAIRN_RETURN_IF_ERROR(CheckPolicies(*runtime));
  KeepConversations(*runtime);
  return runtime;
}

absl::Status ComputeDaemon::CheckPolicy(Runtime& runtime, const SessionOptions& options) {
  const auto made = MakePolicyOf(runtime.deps(options, state_.memory(), nullptr), options.policy);
  // As a new conversation begins.
  return made.ok() ? (*made)->keeper().RestoreState({}) : made.status();
}

absl::Status ComputeDaemon::CheckPolicies(Runtime& runtime) {
  const absl::Status status = CheckPolicy(runtime, runtime.options);
  if (!status.ok()) {
    return Reworded(status,
                    fmt::format("{} cannot have the configured policy: {}; configure policy: "
                                "\"full\", or another one",
                                config_.model_path(), Message(status)));
  }
  if (config_.tuning_path().empty()) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(
      runtime.tuning,
      ReadTuningFile(config_.tuning_path(), ThisDevice(runtime.served.base.key.model_digest),
                     runtime.options));
  for (const TunedEntry& entry : runtime.tuning->entries()) {
    CAIRN_RETURN_IF_ERROR(Annotate(CheckPolicy(runtime, entry.On(runtime.options)),
                                   fmt::format("tuning_path {}: the model cannot have {}",
                                               config_.tuning_path(), *entry.policy.name)));
  }
  return absl::OkStatus();
}

void ComputeDaemon::KeepConversations(Runtime& runtime) {
  const int count_max = config_.http_kept_conversation_count_max();
  if (kept_label_.empty()) return;
  std::vector<PolicyChoice> policies = {runtime.options.policy};
  if (runtime.tuning.has_value()) {
    for (const TunedEntry& entry : runtime.tuning->entries()) {
      policies.push_back(entry.On(runtime.options).policy);
    }
  }
  auto kept = std::make_unique<KeptConversations>(*runtime.node, runtime.served,
                                                  std::move(policies), state_.open_conversations(),
                                                  kept_label_, runtime.creator, count_max);
  kept->Adopt();  // deletes what an earlier process kept if none may be
  if (count_max > 0) runtime.kept = std::move(kept);
}

std::string ComputeDaemon::OtherKvNodeAdvice() const {
  const std::string other = ServedElsewhere(environment_, config_.kv_socket_path(), "kv.sock");
  if (other.empty()) return "";
  return fmt::format(
      "; there is one at {}: give it by --kv-socket, or set XDG_RUNTIME_DIR as where it was "
      "started",
      other);
}

absl::StatusOr<std::unique_ptr<KvNode>> ComputeDaemon::ReachKvNode() {
  if (config_.kv() == "ram") {
    RamKvNodeOptions options;
    options.size_bytes = config_.kv_ram_bytes();
    return MakeRamKvNode(options);
  }
  if (config_.kv() == "embedded") {
    CAIRN_ASSIGN_OR_RETURN(kv::KvNodeConfig kv_config,
                           EmbeddedKvConfig(config_.kv_config_path(), environment_));
    // Its threads are this process's, which serve its reads.
    kv_config.set_realtime_priority(
        std::max(kv_config.realtime_priority(), config_.realtime_priority()));
    absl::StatusOr<std::unique_ptr<KvNode>> node = OpenEmbeddedKvNode(kv_config, stopping_);
    CAIRN_RETURN_IF_ERROR(Annotate(node.status(), "kv: \"embedded\""));
    return node;
  }
  KvClientOptions options;
  options.reconnect_time_max = std::chrono::seconds(config_.kv_wait_seconds());
  options.checkpoints_at_stop = true;  // see Conversation
  options.realtime_priority = config_.realtime_priority();
  CAIRN_RETURN_IF_ERROR(
      Annotate(ServingPriority(options.realtime_priority).status(), "realtime_priority"));
  Clock::time_point deadline = Clock::now() + options.reconnect_time_max;
  StartingKvNode starting(config_.kv_socket_path());
  bool told = false;
  for (;;) {
    const bool is_starting = starting.IsThere();
    if (is_starting) deadline = Clock::now() + options.reconnect_time_max;
    absl::StatusOr<std::unique_ptr<GrpcKvNode>> node =
        GrpcKvNode::Connect(config_.kv_socket_path(), options);
    if (node.ok()) {
      state_.SetKvStatus(absl::OkStatus());
      return std::unique_ptr<KvNode>(*std::move(node));
    }
    if (!MayComeUp(node.status())) return node.status();
    if (Clock::now() >= deadline || stopping_.load() != 0) {
      return Unavailable(
          "cannot reach cairn-kv-node at {} after {} s: {}; start it with `cairn-kv-node --socket "
          "{}`, or keep keys and values in memory with --kv ram{}",
          config_.kv_socket_path(), config_.kv_wait_seconds(), Message(node.status()),
          config_.kv_socket_path(), OtherKvNodeAdvice());
    }
    state_.SetKvStatus(Unavailable("waiting for cairn-kv-node at {}{}", config_.kv_socket_path(),
                                   is_starting ? ", which is starting" : ""));
    if (!told && !is_starting) {
      LogWarning("waiting for cairn-kv-node socket={} seconds_max={}{}", config_.kv_socket_path(),
                 config_.kv_wait_seconds(), OtherKvNodeAdvice());
      told = true;
    }
    std::this_thread::sleep_for(kConnectInterval);
  }
}

}  // namespace cairn::compute
