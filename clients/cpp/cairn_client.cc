#include "clients/cpp/cairn_client.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "cairn/compute/v1/inference.grpc.pb.h"
#include "clients/cpp/client_messages.h"
#include "clients/cpp/request_check.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/daemon/paths.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/unix_socket.h"

namespace cairn {
namespace {

// How soon a cancellation is noticed, and how often a loading daemon is asked.
constexpr std::string_view kSocketName = "compute.sock";
constexpr std::chrono::milliseconds kPollInterval{50};
constexpr std::int32_t kPageSize = 1000;
// Replies hold a conversation's text.
constexpr int kReplyBytesMax = 256 << 20;

// gRPC's own words when the process at the other end died: which of them depends on whether a read
// or a write saw it first.
bool SaysConnectionEnded(std::string_view message) {
  for (const std::string_view words :
       {"Socket closed", "Broken pipe", "Connection reset by peer"}) {
    if (message.find(words) != std::string_view::npos) return true;
  }
  return false;
}

// What a caller that cancelled can count on.
absl::Status CancelledByCaller(const GenerateOptions& options, const GenerateResult& so_far) {
  if (options.ephemeral) {
    return Cancelled("cancelled; nothing was kept, for the conversation is ephemeral");
  }
  if (so_far.generated_token_count > 0) {
    return Cancelled("cancelled; what was generated is in conversation {}", so_far.conversation_id);
  }
  if (so_far.conversation_id == 0) return Cancelled("cancelled before the prompt was begun");
  return Cancelled(
      "cancelled while the prompt was computed; conversation {} keeps the part that was done, if "
      "any",
      so_far.conversation_id);
}

// Cancels a call when its token says so; gRPC can only be told from a thread that is not waiting
// for it.
class CancelWatch {
 public:
  CancelWatch(const CancelToken* token, grpc::ClientContext& context) {
    if (token == nullptr) return;
    thread_ = StartThread("cancel-watch", [this, token, &context] {
      while (!ended_.load() && !token->cancelled()) std::this_thread::sleep_for(kPollInterval);
      if (token->cancelled()) context.TryCancel();
    });
  }
  ~CancelWatch() {
    ended_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  CancelWatch(const CancelWatch&) = delete;
  CancelWatch& operator=(const CancelWatch&) = delete;

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

constexpr std::int64_t kKnownConversationsMax = 10000;

// The uids of the conversations that a client has heard of: a request that names one by its number
// is to reach that one, also when the daemon has another store meanwhile.
//
// Threading:  safe from any thread.
// Limits:     kKnownConversationsMax; the ones with the lowest numbers are forgotten.
class KnownConversations {
 public:
  void Note(std::int64_t conversation_id, const std::string& uid) {
    const MutexLock lock(mutex_);
    uids_[conversation_id] = uid;
    if (static_cast<std::int64_t>(uids_.size()) > kKnownConversationsMax) {
      uids_.erase(uids_.begin());
    }
  }
  // Empty: nothing is known, the number alone has to do.
  std::string UidOf(std::int64_t conversation_id) const {
    const MutexLock lock(mutex_);
    const auto found = uids_.find(conversation_id);
    return found == uids_.end() ? "" : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::int64_t, std::string> uids_ CAIRN_GUARDED_BY(mutex_);
};

std::string OtherSocketAdvice(const std::string& socket_path) {
  const std::string other = ServedElsewhere(ProcessEnvironment(), socket_path, kSocketName);
  if (other.empty()) return "";
  return fmt::format(
      "; there is one at {}: give it by --socket, or set XDG_RUNTIME_DIR as where the daemon was "
      "started",
      other);
}

}  // namespace

struct CairnClient::Impl {
  using Stub = v1::InferenceService::Stub;

  // Each call has a connection of its own, which over a Unix socket costs about a millisecond.
  // Of one that is kept only a failed call shows that the daemon was started again meanwhile, and
  // one that was refused waits longer each time before it tries again.
  std::unique_ptr<Stub> NewStub() const;
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response,
                    std::chrono::milliseconds time_max = kCallTimeMax) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + time_max);
    return Explain(rpc::FromGrpcStatus((*NewStub().*method)(&context, request, response)));
  }
  // A request that names a conversation, and nothing else yet.
  template <typename Request>
  Request RequestFor(std::int64_t conversation_id) const {
    Request request;
    request.set_conversation_id(conversation_id);
    request.set_conversation_uid(known.UidOf(conversation_id));
    return request;
  }
  // What a call failed with, in words that help.
  absl::Status Explain(const absl::Status& status) const;
  absl::Status ExplainUnreachable(const std::string& reason) const;

  std::string socket_path;
  KnownConversations known;
};

std::unique_ptr<CairnClient::Impl::Stub> CairnClient::Impl::NewStub() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
  // Otherwise channels that live at the same time share connections, and waits after failures.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // In spite of its name, for how long a daemon may take to answer a new connection.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(std::chrono::milliseconds(kCallTimeMax).count()));
  return v1::InferenceService::NewStub(grpc::CreateCustomChannel(
      "unix:" + socket_path, grpc::InsecureChannelCredentials(), arguments));
}

double GenerateResult::TokensPerSecond() const {
  if (generated_token_count < 2 || decode_time.count() <= 0) return 0;
  return static_cast<double>(generated_token_count - 1) /
         std::chrono::duration<double>(decode_time).count();
}

absl::StatusOr<std::unique_ptr<CairnClient>> CairnClient::Connect(const std::string& socket_path) {
  if (std::ssize(socket_path) > rpc::kSocketPathBytesMax) {
    return InvalidArgument("socket path {} has {} bytes: an address holds {}", socket_path,
                           socket_path.size(), rpc::kSocketPathBytesMax);
  }
  if (socket_path.empty()) {
    return InvalidArgument("the socket path is empty: give that of cairn-compute-node");
  }
  auto impl = std::make_unique<Impl>();
  impl->socket_path = socket_path;
  std::unique_ptr<CairnClient> client(new CairnClient(std::move(impl)));
  const absl::Status reached = client->GetStatus().status();
  // Every compute node has this call.
  if (absl::IsUnimplemented(reached)) {
    return FailedPrecondition(
        "what serves {} is not cairn-compute-node: give its socket, not that of cairn-kv-node",
        socket_path);
  }
  CAIRN_RETURN_IF_ERROR(reached);
  return client;
}

CairnClient::CairnClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CairnClient::~CairnClient() = default;

absl::Status CairnClient::Impl::ExplainUnreachable(const std::string& reason) const {
  // Connecting writes to a socket.
  const int refused = ::access(socket_path.c_str(), W_OK) == 0 ? 0 : errno;
  if (refused == EACCES) {
    return PermissionDenied(
        "permission denied: this user may not open {}, the socket of cairn-compute-node; run as "
        "the daemon's user, or give the daemon a socket_mode and a directory that let you in",
        socket_path);
  }
  return Unavailable(
      "cannot reach cairn-compute-node at {}: is it running? Start it with `cairn-compute-node "
      "--model FILE.gguf --socket {}` ({}{})",
      socket_path, socket_path, refused == ENOENT ? "there is no such socket" : reason,
      refused == ENOENT ? OtherSocketAdvice(socket_path) : "");
}

absl::Status CairnClient::Impl::Explain(const absl::Status& status) const {
  if (status.ok()) return status;
  const std::string message = Message(status);
  const std::string reason =
      message.empty() ? fmt::format("{} without a reason", absl::StatusCodeToString(status.code()))
                      : message;
  // Not the caller's doing, so it may not look like it.
  if (status.code() == absl::StatusCode::kCancelled) {
    return Unavailable("cairn-compute-node at {} ended the call: {}", socket_path, reason);
  }
  if (message.empty()) {
    return {status.code(), fmt::format("cairn-compute-node at {} answered {}; its log may say more",
                                       socket_path, reason)};
  }
  if (status.code() != absl::StatusCode::kUnavailable) return status;
  // gRPC's own words, which begin all messages about a socket that nobody serves.
  if (message.starts_with("failed to connect")) return ExplainUnreachable(reason);
  if (SaysConnectionEnded(message)) {
    return Unavailable("cairn-compute-node at {} went away ({}); its log may say why", socket_path,
                       reason);
  }
  return status;
}

absl::StatusOr<GenerateResult> CairnClient::Generate(const GenerateOptions& options,
                                                     const CancelToken* cancel) {
  CAIRN_RETURN_IF_ERROR(CheckTexts(options));
  v1::GenerateRequest request = ToProto(options);
  request.set_conversation_uid(impl_->known.UidOf(options.conversation_id));
  CAIRN_RETURN_IF_ERROR(CheckRequestBytes(static_cast<std::int64_t>(request.ByteSizeLong())));
  grpc::ClientContext context;
  if (options.time_max) context.set_deadline(std::chrono::system_clock::now() + *options.time_max);
  GenerateResult result;
  const std::unique_ptr<Impl::Stub> stub = impl_->NewStub();
  const std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader =
      stub->Generate(&context, request);
  absl::Status handled;
  bool finished = false;
  {
    const CancelWatch watch(cancel, context);
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
      if (!handled.ok()) continue;
      if (event.has_started()) {
        impl_->known.Note(event.started().conversation_id(), event.started().conversation_uid());
      }
      handled = HandleEvent(options, event, result);
      finished = finished || event.has_finished();
      if (!handled.ok()) context.TryCancel();
    }
  }
  const absl::Status status = rpc::FromGrpcStatus(reader->Finish());
  CAIRN_RETURN_IF_ERROR(handled);
  // A cancellation that came after the end changes nothing.
  if (finished) return result;
  if (status.ok()) return Internal("cairn-compute-node ended the stream without a last event");
  if (cancel != nullptr && cancel->cancelled()) return CancelledByCaller(options, result);
  return impl_->Explain(status);
}

absl::StatusOr<std::vector<ConversationInfo>> CairnClient::ListConversations() {
  std::vector<ConversationInfo> conversations;
  v1::ListConversationsRequest request;
  request.set_page_size(kPageSize);
  do {
    v1::ListConversationsResponse response;
    CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::ListConversations, request, &response));
    for (const v1::Conversation& conversation : response.conversations()) {
      impl_->known.Note(conversation.conversation_id(), conversation.conversation_uid());
      conversations.push_back(FromProto(conversation));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return conversations;
}

absl::StatusOr<std::string> CairnClient::ReadConversation(std::int64_t conversation_id,
                                                          ConversationInfo* info) {
  v1::GetConversationResponse response;
  CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::GetConversation,
                                    impl_->RequestFor<v1::GetConversationRequest>(conversation_id),
                                    &response));
  impl_->known.Note(conversation_id, response.conversation().conversation_uid());
  if (info != nullptr) *info = FromProto(response.conversation());
  return std::move(*response.mutable_text());
}

absl::StatusOr<ConversationInfo> CairnClient::FindConversation(std::int64_t conversation_id) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ConversationInfo> conversations, ListConversations());
  for (const ConversationInfo& info : conversations) {
    if (info.conversation_id == conversation_id) return info;
  }
  return NotFound("there is no conversation {}: `cairn sessions list` lists them", conversation_id);
}

absl::StatusOr<std::int64_t> CairnClient::WaitForKeptTokens(std::int64_t conversation_id,
                                                            std::chrono::milliseconds time_max) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  for (;;) {
    ConversationInfo info;
    const absl::Status status = ReadConversation(conversation_id, &info).status();
    if (status.ok()) return info.token_count;
    if (absl::IsNotFound(status)) return 0;
    // It is still generating.
    if (!absl::IsFailedPrecondition(status)) return status;
    if (std::chrono::steady_clock::now() >= deadline) {
      return DeadlineExceeded("conversation {} has not ended after {} ms", conversation_id,
                              time_max.count());
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

absl::Status CairnClient::DeleteConversation(std::int64_t conversation_id) {
  v1::DeleteConversationResponse response;
  return impl_->Call(&Impl::Stub::DeleteConversation,
                     impl_->RequestFor<v1::DeleteConversationRequest>(conversation_id), &response);
}

absl::StatusOr<std::int64_t> CairnClient::ForkConversation(std::int64_t conversation_id,
                                                           std::int64_t token_count,
                                                           const std::string& label) {
  auto request = impl_->RequestFor<v1::ForkConversationRequest>(conversation_id);
  request.set_token_count(token_count);
  request.set_label(label);
  v1::ForkConversationResponse response;
  CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::ForkConversation, request, &response));
  impl_->known.Note(response.conversation_id(), response.conversation_uid());
  return response.conversation_id();
}

absl::StatusOr<std::vector<std::int32_t>> CairnClient::Tokenize(const std::string& text,
                                                                bool special) {
  CAIRN_RETURN_IF_ERROR(CheckPrompt("the text", text));
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_special(special);
  v1::TokenizeResponse response;
  CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::Tokenize, request, &response));
  return std::vector<std::int32_t>(response.ids().begin(), response.ids().end());
}

absl::StatusOr<ModelDescription> CairnClient::GetModel() {
  v1::ListModelsResponse response;
  CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::ListModels, {}, &response));
  if (response.models_size() == 0) return Internal("cairn-compute-node serves no model");
  const v1::ModelInfo& info = response.models(0);
  ModelDescription model;
  model.name = info.name();
  model.digest = info.digest();
  model.context_token_count = info.context_token_count();
  model.kv_token_bytes = info.kv_token_bytes();
  model.vocab_count = info.vocab_count();
  model.turn_template = info.turn_template();
  model.turn_stop.assign(info.turn_stop().begin(), info.turn_stop().end());
  model.chat_template = info.chat_template();
  return model;
}

absl::StatusOr<DaemonStatus> CairnClient::GetStatus() {
  v1::GetStatusResponse response;
  CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::GetStatus, {}, &response));
  DaemonStatus status;
  status.phase = EnumFromProto(response.phase(), DaemonPhase::kStopping);
  status.model_loaded_bytes = response.model_loaded_bytes();
  status.model_size_bytes = response.model_size_bytes();
  status.generation_count = response.generation_count();
  status.kv_dram_bytes = response.kv_dram_bytes();
  status.kv_node_problem = response.kv_node_problem();
  for (const v1::Generation& generation : response.generations()) {
    status.generations.push_back(FromProto(generation));
  }
  return status;
}

absl::StatusOr<StoreStatus> CairnClient::GetStore(std::chrono::milliseconds time_max) {
  v1::GetStoreResponse response;
  CAIRN_RETURN_IF_ERROR(impl_->Call(&Impl::Stub::GetStore, {}, &response, time_max));
  return StoreStatus{response.io_engine(), response.used_bytes(), response.size_bytes(),
                     response.conversation_count()};
}

absl::Status CairnClient::WaitUntilReady(std::chrono::milliseconds time_max,
                                         const std::function<void(const DaemonStatus&)>& progress,
                                         const CancelToken* cancel) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const DaemonStatus status, GetStatus());
    if (status.phase == DaemonPhase::kReady) return absl::OkStatus();
    if (status.phase == DaemonPhase::kStopping) {
      return Unavailable("cairn-compute-node is stopping: start it again");
    }
    if (progress) progress(status);
    if (cancel != nullptr && cancel->cancelled()) return Cancelled("cancelled while waiting");
    if (std::chrono::steady_clock::now() >= deadline) {
      return DeadlineExceeded("cairn-compute-node is still loading the model ({} of {} bytes)",
                              status.model_loaded_bytes, status.model_size_bytes);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

std::string DefaultComputeSocket() {
  const char* chosen = std::getenv("CAIRN_SOCKET");  // NOLINT(concurrency-mt-unsafe): read only
  if (chosen != nullptr && *chosen != '\0') return chosen;
  return DefaultSocketPath(ProcessEnvironment(), kSocketName);
}

}  // namespace cairn
