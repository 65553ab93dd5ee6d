#include "compute-node/service/inference_service.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <absl/cleanup/cleanup.h>
#include <google/protobuf/util/time_util.h>

#include "common/base/utf8.h"
#include "compute-node/service/stored_sessions.h"

namespace cairn::compute {
namespace {

using google::protobuf::util::TimeUtil;
using Clock = std::chrono::steady_clock;

// Without an event for so long a client is told what the generation waits for.
constexpr std::chrono::seconds kSilenceMax{2};
constexpr const char* kRetryAfterKey = "cairn-retry-after-ms";
constexpr const char* kRetryAfterMs = "2000";
// Beyond this a deadline is none: adding it to a clock could overflow.
constexpr std::chrono::hours kDeadlineMax{24 * 365};
// What a token of a conversation takes while it becomes text in a message.
constexpr std::int64_t kShownTokenBytes = 32;

StopSignal::Clock::time_point DeadlineOf(const grpc::ServerContext& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  if (left > kDeadlineMax) return StopSignal::Clock::time_point::max();
  return StopSignal::Clock::now() + std::chrono::duration_cast<StopSignal::Clock::duration>(left);
}

void ToProto(const SessionInfo& session, const ServedModel& served, v1::Conversation& out) {
  out.set_conversation_id(session.session_id.value());
  out.set_conversation_uid(session.uid);
  out.set_label(session.label);
  out.set_token_count(session.token_count);
  out.set_flash_bytes(session.own_flash_bytes);
  out.set_shared_flash_bytes(session.shared_flash_bytes);
  *out.mutable_create_time() = TimeUtil::MicrosecondsToTimestamp(session.create_time_us);
  // What a fork begins with was stored when it was made.
  const bool is_new_fork = session.checkpoint_time_us == 0 && session.token_count > 0;
  const std::int64_t stored_time_us =
      is_new_fork ? session.create_time_us : session.checkpoint_time_us;
  if (stored_time_us != 0) {
    *out.mutable_update_time() = TimeUtil::MicrosecondsToTimestamp(stored_time_us);
  }
  const absl::Status usable = served.CheckServes(session.session_id, IdentityOf(session));
  out.set_usable(usable.ok());
  out.set_unusable_reason(Message(usable));
}

v1::GenerationPhase PhaseOf(const LiveSnapshot& live, bool kv_node_serves) {
  if (live.phase == LivePhase::kQueued) return v1::GENERATION_PHASE_QUEUED;
  // What a pass waits for is not seen between passes.
  if (live.waits_for_store || !kv_node_serves) return v1::GENERATION_PHASE_WAITING;
  switch (live.phase) {
    case LivePhase::kQueued:
    case LivePhase::kOpening:
      break;
    case LivePhase::kPrefilling:
      return v1::GENERATION_PHASE_PREFILLING;
    case LivePhase::kDecoding:
      return v1::GENERATION_PHASE_DECODING;
    case LivePhase::kRecomputing:
      return v1::GENERATION_PHASE_RECOMPUTING;
  }
  return v1::GENERATION_PHASE_OPENING;
}

void ToProto(const LiveSnapshot& live, bool kv_node_serves, v1::Generation& out) {
  out.set_phase(PhaseOf(live, kv_node_serves));
  out.set_conversation_id(live.conversation.id.value());
  out.set_conversation_uid(live.conversation.uid);
  out.set_label(live.label);
  out.set_policy(live.policy);
  out.set_token_count(live.token_count);
  out.set_stored_token_count(live.durable_token_count);
  out.set_done_token_count(live.phase_done_count());
  out.set_total_token_count(live.phase_token_count);
  out.set_kv_dram_bytes(live.memory_bytes);
  out.set_kv_read_bytes(live.kv_read_bytes);
}

// Newest first; ids break ties, so that pages neither repeat nor skip.
bool IsNewer(const SessionInfo& a, const SessionInfo& b) {
  if (a.create_time_us != b.create_time_us) return a.create_time_us > b.create_time_us;
  return a.session_id > b.session_id;
}

std::string PageToken(const SessionInfo& last) {
  return fmt::format("{}.{}", last.create_time_us, last.session_id);
}

absl::StatusOr<SessionInfo> ParsePageToken(const std::string& token) {
  SessionInfo last;
  const char* end = token.data() + token.size();
  std::int64_t id = 0;
  const auto time = std::from_chars(token.data(), end, last.create_time_us);
  const bool separated = time.ec == std::errc() && time.ptr != end && *time.ptr == '.';
  const auto rest = separated ? std::from_chars(time.ptr + 1, end, id) : time;
  if (!separated || rest.ec != std::errc() || rest.ptr != end) {
    return InvalidArgument("page_token '{}' is none that this daemon gave", token);
  }
  last.session_id = SessionId(id);
  return last;
}

// As FindSession's message, for what the KV node calls a session.
absl::Status AsConversation(const absl::Status& status, SessionId id) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  return NotFound("there is no conversation {}: `cairn sessions list` lists them", id);
}

absl::Status IsGenerating(SessionId id) {
  return FailedPrecondition("conversation {} is generating right now: ask again afterwards", id);
}

}  // namespace

grpc::Status InferenceServiceImpl::StreamedGenerate(grpc::ServerContext* context,
                                                    GenerateStream* streamer) {
  SessionId conversation;
  const absl::Status status = RunGenerate(*context, *streamer, conversation);
  if (status.code() == absl::StatusCode::kResourceExhausted ||
      status.code() == absl::StatusCode::kUnavailable) {
    context->AddTrailingMetadata(kRetryAfterKey, kRetryAfterMs);
  }
  return rpc::ToGrpcStatus(AsConversation(status, conversation));
}

absl::StatusOr<std::shared_ptr<GenerateJob>> InferenceServiceImpl::MakeJob(
    const grpc::ServerContext& context, GenerateStream& stream, SessionId& conversation,
    MemoryClaim& memory) {
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<Runtime> runtime, state_.runtime());
  v1::GenerateRequest request;
  CAIRN_RETURN_IF_ERROR(gate_.Read(stream, request, memory));
  conversation = SessionId(request.conversation_id());
  CAIRN_ASSIGN_OR_RETURN(
      std::shared_ptr<GenerateJob> job,
      GenerateJob::Make(request, std::move(runtime), state_, DeadlineOf(context)));
  // What the job still has of it.
  const std::int64_t kept_bytes = std::min(memory.bytes(), job->message_bytes());
  request = {};
  if (kept_bytes == 0) memory.Release();
  CAIRN_RETURN_IF_ERROR(memory.Resize(kept_bytes));  // less is always granted
  return job;
}

absl::Status InferenceServiceImpl::RunGenerate(const grpc::ServerContext& context,
                                               GenerateStream& stream, SessionId& conversation) {
  MemoryClaim memory;
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<GenerateJob> job,
                         MakeJob(context, stream, conversation, memory));
  CAIRN_RETURN_IF_ERROR(queue_.Submit(
      job->stop(), [job] { job->Run(); }, job->conversation()));
  bool written = true;
  const auto connected = [&] { return written && !context.IsCancelled(); };
  bool is_told = false;  // that the KV node is away
  do {
    const auto until = is_told ? Clock::time_point::max() : Clock::now() + kSilenceMax;
    std::optional<v1::GenerateEvent> event = NextEvent(*job, connected, until);
    is_told = is_told && !event.has_value();
    if (!event.has_value() && !is_told && !state_.kv_status().ok()) {
      is_told = true;
      event.emplace().mutable_waiting()->set_reason("cairn-kv-node is away");
    }
    if (event.has_value()) written = written && stream.Write(*event);
  } while (!job->events().done());
  return job->status();
}

absl::Status InferenceServiceImpl::ListPage(const v1::ListConversationsRequest& request,
                                            v1::ListConversationsResponse& response) {
  if (request.page_size() < 0 || request.page_size() > kPageSizeMax) {
    return InvalidArgument("page_size is {}: it must be 1 to {}", request.page_size(),
                           kPageSizeMax);
  }
  const std::int64_t page_size = request.page_size() == 0 ? kPageSizeDefault : request.page_size();
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  CAIRN_ASSIGN_OR_RETURN(std::vector<SessionInfo> sessions,
                         runtime->node->List(ListDetail::kFlashUse));
  std::sort(sessions.begin(), sessions.end(), IsNewer);
  auto first = sessions.begin();
  if (!request.page_token().empty()) {
    CAIRN_ASSIGN_OR_RETURN(const SessionInfo last, ParsePageToken(request.page_token()));
    first = std::upper_bound(sessions.begin(), sessions.end(), last, IsNewer);
  }
  for (; first != sessions.end(); ++first) {
    if (response.conversations_size() == page_size) {
      response.set_next_page_token(PageToken(*std::prev(first)));
      break;
    }
    ToProto(*first, runtime->served, *response.add_conversations());
  }
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::Delete(const v1::DeleteConversationRequest& request,
                                          v1::DeleteConversationResponse& /*response*/) {
  const SessionRef conversation{SessionId(request.conversation_id()), request.conversation_uid()};
  CAIRN_RETURN_IF_ERROR(CheckUidBytes(conversation.uid));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  if (!state_.open_conversations().TryTake(conversation.id)) {
    return FailedPrecondition(
        "conversation {} is generating right now: wait for its end, or end it where it was asked "
        "for",
        conversation.id);
  }
  const absl::Cleanup give = [&] { state_.open_conversations().Give(conversation.id); };
  return AsConversation(runtime->node->Delete(conversation), conversation.id);
}

absl::Status InferenceServiceImpl::Fork(const v1::ForkConversationRequest& request,
                                        v1::ForkConversationResponse& response) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  const SessionId id(request.conversation_id());
  CAIRN_RETURN_IF_ERROR(CheckLabel(request.label()));
  CAIRN_RETURN_IF_ERROR(CheckUidBytes(request.conversation_uid()));
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo info,
                         FindSession(*runtime->node, {id, request.conversation_uid()}));
  CAIRN_RETURN_IF_ERROR(runtime->served.CheckServes(id, IdentityOf(info)));
  const std::int64_t count = request.token_count() == 0 ? info.token_count : request.token_count();
  if (count < 1 || count > info.token_count) {
    return InvalidArgument("token_count is {}: conversation {} has {} tokens, it must be 1 to that",
                           count, id, info.token_count);
  }
  if (!state_.open_conversations().TryTake(id)) return IsGenerating(id);
  const absl::Cleanup give = [&] { state_.open_conversations().Give(id); };
  const absl::StatusOr<SessionRef> fork =
      ForkSession(*runtime->node, info, count, {request.label(), runtime->creator});
  if (!fork.ok()) return AsConversation(fork.status(), id);
  response.set_conversation_id(fork->id.value());
  response.set_conversation_uid(fork->uid);
  response.set_token_count(count);
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::ReadConversation(const v1::GetConversationRequest& request,
                                                    v1::GetConversationResponse& response) {
  const SessionRef conversation{SessionId(request.conversation_id()), request.conversation_uid()};
  CAIRN_RETURN_IF_ERROR(CheckUidBytes(conversation.uid));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  const SessionId id = conversation.id;
  if (!state_.open_conversations().TryTake(id)) return IsGenerating(id);
  const absl::Cleanup give = [&] { state_.open_conversations().Give(id); };
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo info,
                         FindSession(*runtime->node, conversation, ListDetail::kFlashUse));
  CAIRN_RETURN_IF_ERROR(runtime->served.CheckServes(id, IdentityOf(info)));
  ToProto(info, runtime->served, *response.mutable_conversation());
  MemoryClaim memory(state_.request_memory());
  CAIRN_RETURN_IF_ERROR(memory.Resize(kShownTokenBytes * info.token_count));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> tokens,
                         ReadAllTokens(*runtime->node, RefTo(info)));
  // Byte tokens can be in any order, and a message's string must be UTF-8.
  response.set_text(ReplaceBadUtf8(runtime->tokenizer->Decode(tokens)));
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::TokenizeText(const v1::TokenizeRequest& request,
                                                v1::TokenizeResponse& response) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  if (std::ssize(request.text()) > kTextBytesMax) {
    return InvalidArgument("text has {} bytes: at most {}", request.text().size(), kTextBytesMax);
  }
  const std::vector<std::int32_t> ids = runtime->tokenizer->Encode(
      request.text(), {.add_special = request.special(), .parse_special = request.special()});
  response.mutable_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::DescribeModel(const v1::ListModelsRequest& /*request*/,
                                                 v1::ListModelsResponse& response) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  const ModelConfig& config = runtime->model->config();
  v1::ModelInfo& model = *response.add_models();
  model.set_name(rpc::CleanMessage(config.name));
  model.set_digest(runtime->served.base.key.model_digest);
  model.set_context_token_count(ContextTokensMax(runtime->options, config));
  model.set_kv_token_bytes(runtime->served.base.layout.TokenBytes());
  model.set_vocab_count(static_cast<std::int32_t>(config.vocab_size));
  model.set_turn_template(runtime->turn_template);
  for (const std::string& stop : runtime->turn_stop) model.add_turn_stop(stop);
  if (runtime->chat.ok()) model.set_chat_template(std::string(runtime->chat->name()));
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::DescribeStatus(const v1::GetStatusRequest& /*request*/,
                                                  v1::GetStatusResponse& response) {
  switch (state_.phase()) {
    case DaemonState::Phase::kLoading:
      response.set_phase(v1::DAEMON_PHASE_LOADING);
      break;
    case DaemonState::Phase::kReady:
      response.set_phase(v1::DAEMON_PHASE_READY);
      break;
    case DaemonState::Phase::kStopping:
      response.set_phase(v1::DAEMON_PHASE_STOPPING);
      break;
  }
  response.set_model_loaded_bytes(state_.loaded_bytes());
  response.set_model_size_bytes(state_.size_bytes());
  response.set_kv_dram_bytes(state_.memory().used_bytes());
  const absl::Status kv_status = state_.KvStatusNow();
  response.set_kv_node_problem(rpc::CleanMessage(Message(kv_status)));
  for (const LiveSnapshot& live : state_.live_conversations().List()) {
    ToProto(live, kv_status.ok(), *response.add_generations());
  }
  response.set_generation_count(response.generations_size());
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::DescribeStore(const v1::GetStoreRequest& /*request*/,
                                                 v1::GetStoreResponse& response) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Runtime> runtime, state_.runtime());
  CAIRN_ASSIGN_OR_RETURN(const KvStats stats, runtime->node->Stats());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SessionInfo> sessions,
                         runtime->node->List(ListDetail::kRows));
  response.set_io_engine(stats.io_engine);
  response.set_used_bytes(stats.flash_used_bytes);
  response.set_size_bytes(stats.flash_size_bytes);
  response.set_conversation_count(std::ssize(sessions));
  return absl::OkStatus();
}

}  // namespace cairn::compute
