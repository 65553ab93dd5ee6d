#include "compute-node/service/generate_job.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/error_reason.h"
#include "common/base/heap.h"
#include "common/log/log.h"
#include "common/timeline/timeline.h"
#include "compute-node/service/generate_events.h"
#include "compute-node/service/stored_sessions.h"
#include "compute-node/service/stored_tokens.h"
#include "compute-node/service/turn_request.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

// How soon a client that vanished is noticed.
constexpr std::chrono::milliseconds kCancelCheckInterval{50};
// More often a person would not see it.
constexpr std::chrono::milliseconds kProgressInterval{50};
// As many as the text that ends a turn can have.
constexpr std::int32_t kEndTokensMax = 64;
// Memory of a conversation from which on what was freed is worth giving back.
constexpr std::int64_t kReturnedBytesMin = std::int64_t{4} << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<GenerateJob>> GenerateJob::Make(
    const v1::GenerateRequest& request, std::shared_ptr<Runtime> runtime, DaemonState& state,
    StopSignal::Clock::time_point deadline, ClientHistory history) {
  std::shared_ptr<GenerateJob> job(new GenerateJob(std::move(runtime), state, deadline));
  CAIRN_RETURN_IF_ERROR(job->ReadRequest(request));
  if (history == ClientHistory::kSentAgain) {
    CAIRN_CHECK(job->ephemeral_);
    job->kept_ = job->runtime_->kept.get();
    // Computed alike whether anything is kept or not, so that a prompt has one answer.
    job->turn_.prompt_end = job->kept_ != nullptr ? PromptEnd::kSealed : PromptEnd::kLastAlone;
    // What an earlier request's seed began is not random.
    job->turn_.keep_random_state = false;
  }
  job->ready_ = Clock::now();
  return job;
}

GenerateJob::GenerateJob(std::shared_ptr<Runtime> runtime, DaemonState& state,
                         StopSignal::Clock::time_point deadline)
    : runtime_(std::move(runtime)),
      state_(state),
      start_(Clock::now()),
      stop_(std::make_shared<StopSignal>(deadline)),
      memory_(&state.memory()) {}

absl::Status GenerateJob::ReadRequest(const v1::GenerateRequest& request) {
  if (request.conversation_id() < 0) {
    return InvalidArgument("conversation_id is {}: ids are positive", request.conversation_id());
  }
  conversation_ = {SessionId(request.conversation_id()), request.conversation_uid()};
  CAIRN_RETURN_IF_ERROR(CheckUidBytes(conversation_.uid));
  if (request.has_conversation_token_count()) {
    expected_token_count_ = request.conversation_token_count();
  }
  if (conversation_.id.value() == 0 && !conversation_.uid.empty()) {
    return InvalidArgument("conversation_uid is set without conversation_id: set both");
  }
  label_ = request.label();
  CAIRN_RETURN_IF_ERROR(CheckLabel(label_));
  ephemeral_ = request.ephemeral();
  if (ephemeral_ && conversation_.id.value() != 0) {
    return InvalidArgument(
        "ephemeral is set and conversation_id is {}: only a new conversation can be ephemeral",
        conversation_.id);
  }
  const std::int64_t vocab_size = runtime_->model->config().vocab_size;
  CAIRN_RETURN_IF_ERROR(ReadTurnOptions(request, vocab_size, turn_));
  policy_ = ReadRetrieval(request.retrieval());
  // On a conversation that exists the rest shows when it is open.
  const PolicyRequest checked =
      conversation_.id.value() == 0 ? policy_ : PolicyRequest{.name = policy_.name};
  CAIRN_RETURN_IF_ERROR(Annotate(checked.On(runtime_->options.policy).Validate(), "retrieval"));
  if (request.has_tokens()) {
    CAIRN_RETURN_IF_ERROR(ReadTokens(request.tokens(), vocab_size, turn_.prompt));
  } else if (request.has_text()) {
    if (std::ssize(request.text()) > kPromptBytesMax) {
      return InvalidArgument("text has {} bytes: at most {}", request.text().size(),
                             kPromptBytesMax);
    }
    turn_.prompt =
        runtime_->tokenizer->Encode(request.text(), {.add_special = conversation_.id.value() == 0,
                                                     .parse_special = request.parse_special(),
                                                     .tokens_max = runtime_->prompt_tokens_max()});
  } else if (request.has_messages()) {
    CAIRN_RETURN_IF_ERROR(ReadMessages(request.messages()));
    // How they follow a conversation shows when it is open.
    if (conversation_.id.value() != 0) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(WriteMessages(ChatPosition::kFirst));
  }
  if (turn_.prompt.empty()) {
    return InvalidArgument("the prompt is empty: set text, tokens or messages");
  }
  return CheckContext(std::ssize(turn_.prompt), /*held_count=*/0, turn_.tokens_max > 0,
                      ContextTokensMax(runtime_->options, runtime_->model->config()));
}

absl::Status GenerateJob::ReadMessages(const v1::ChatMessages& messages) {
  if (!runtime_->chat.ok()) {
    return FailedPrecondition("messages cannot be taken: {}", Message(runtime_->chat.status()));
  }
  std::int64_t bytes = 0;
  for (const v1::ChatMessage& message : messages.messages()) {
    bytes += std::ssize(message.content());
    messages_.push_back({message.role(), message.content()});
  }
  if (bytes > kPromptBytesMax) {
    return InvalidArgument("messages have {} bytes: at most {}", bytes, kPromptBytesMax);
  }
  if (messages_.empty()) return InvalidArgument("messages has none: give at least one");
  return absl::OkStatus();
}

std::int64_t GenerateJob::message_bytes() const {
  std::int64_t bytes = 0;
  for (const ChatMessage& message : messages_) bytes += std::ssize(message.content);
  return bytes;
}

absl::Status GenerateJob::WriteMessages(ChatPosition position) {
  const ChatTemplate& chat = *runtime_->chat;
  const Tokenizer& tokenizer = *runtime_->tokenizer;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<PromptPiece> pieces,
                         chat.Render(messages_, position, turn_.tokens_max > 0));
  std::vector<ChatMessage>().swap(messages_);
  turn_.prompt = tokenizer.EncodePieces(pieces, runtime_->prompt_tokens_max());
  // Some templates leave it to the tokenizer.
  const bool has_bos = !pieces.empty() && pieces.front().kind == PromptPiece::Kind::kBos;
  if (position == ChatPosition::kFirst && tokenizer.adds_bos() && !has_bos) {
    turn_.prompt.insert(turn_.prompt.begin(), tokenizer.bos_id());
  }
  if (!turn_.ignore_end) turn_.end_text = EndText();
  return absl::OkStatus();
}

std::string GenerateJob::EndText() const {
  const std::string end(runtime_->chat->end_of_turn());
  const std::vector<std::int32_t> ids = runtime_->tokenizer->EncodePieces(
      std::vector<PromptPiece>{{PromptPiece::Kind::kMarkup, end}});
  const bool is_token = ids.size() == 1 && runtime_->tokenizer->IsEndOfGeneration(ids[0]);
  return is_token ? "" : end;
}

absl::Status GenerateJob::WriteMessagesBehind(Conversation& conversation) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> last_tokens,
                         conversation.LastTokens(kEndTokensMax, *stop_));
  if (last_tokens.empty()) return WriteMessages(ChatPosition::kFirst);
  return WriteMessages(EndsTurn(last_tokens) ? ChatPosition::kAfterEnd : ChatPosition::kOpen);
}

bool GenerateJob::EndsTurn(const std::vector<std::int32_t>& last_tokens) const {
  const Tokenizer& tokenizer = *runtime_->tokenizer;
  if (tokenizer.IsEndOfGeneration(last_tokens.back())) return true;
  const std::string end = EndText();
  if (end.empty()) return false;
  std::string text;
  std::size_t last_begin = 0;
  for (const std::int32_t token : last_tokens) {
    last_begin = text.size();
    text += tokenizer.DecodePiece(token, /*render_special=*/true);
  }
  // The last token may go on behind the end.
  const std::size_t begin = text.rfind(end);
  return begin != std::string::npos && begin + end.size() > last_begin;
}

absl::Status GenerateJob::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

void GenerateJob::Run() {
  queue_time_ = Clock::now() - ready_;
  absl::Status status;
  {
    const TimelineSpan span(TimelineKind::kTurn, "generation");
    status = RunTurn();
  }
  FlushTimeline();
  if (absl::Status intact = runtime_->model->CheckIntact(); !intact.ok()) state_.Fail(intact);
  LogInfo("generation session={} prompt_tokens={} status={} time_ms={}", conversation_.id,
          turn_.prompt.size(), ToStd(absl::StatusCodeToString(status.code())),
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_).count());
  if (status.code() == absl::StatusCode::kCancelled && !slow_client_.ok()) {
    status = ResourceExhausted("{}, so the generation was stopped; {}", Message(slow_client_),
                               Message(status));
  }
  if (status.code() == absl::StatusCode::kCancelled &&
      state_.phase() == DaemonState::Phase::kStopping) {
    status = Unavailable("cairn-compute-node is stopping: {}",
                         ephemeral_               ? "ask again when it is back"
                         : lost_token_count_ == 0 ? "the conversation keeps what was generated"
                                                  : Message(status));
  }
  {
    const MutexLock lock(mutex_);
    status_ = std::move(status);
  }
  events_.Close();
  if (memory_.peak_bytes() >= kReturnedBytesMin) ReturnFreedMemory();
}

absl::Status GenerateJob::RunTurn() {
  CAIRN_RETURN_IF_ERROR(stop_->Check());
  if (kept_ != nullptr) return RunKeptTurn();
  const bool is_new = conversation_.id.value() == 0;
  CAIRN_RETURN_IF_ERROR(is_new ? OpenNew()
                               : state_.open_conversations().Take(conversation_.id, *stop_));
  absl::Status status = RunConversation();
  if (ephemeral_) {
    DeleteEphemeral(*runtime_->node, conversation_);
  } else if (is_new && !status.ok()) {
    DeleteIfEmpty(*runtime_->node, conversation_);
  }
  state_.open_conversations().Give(conversation_.id);
  return status;
}

absl::Status GenerateJob::OpenNew() {
  CreateSession create;
  create.key = runtime_->identity.key;
  create.layout = runtime_->identity.layout;
  create.label = kept_ != nullptr ? kept_->label() : label_;
  create.creator = runtime_->creator;
  // Should this process die before the turn has stored anything, nothing is left either.
  const bool is_kept = !ephemeral_ || kept_ != nullptr;
  create.lifetime = is_kept ? SessionLifetime::kFromCheckpoint : SessionLifetime::kEphemeral;
  CAIRN_ASSIGN_OR_RETURN(conversation_, runtime_->node->Create(create));
  // Somebody found it in the list, or guessed its id, and has it.
  absl::Status taken = state_.open_conversations().Take(conversation_.id, *stop_);
  if (!taken.ok()) DeleteIfEmpty(*runtime_->node, conversation_);
  return taken;
}

absl::Status GenerateJob::ReadHistory() {
  const std::int64_t count = turn_.sampling.penalties.HistoryTokens() - std::ssize(turn_.prompt);
  if (count <= 0) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(LastTokens tokens, ReadLastTokens(*runtime_->node, conversation_, count,
                                                           [this] { return stop_->Check(); }));
  turn_.history = std::move(tokens.ids);
  conversation_.uid = std::move(tokens.session_uid);
  const std::int64_t vocab_size = runtime_->model->config().vocab_size;
  for (const std::int32_t token : turn_.history) {
    if (token >= 0 && token < vocab_size) continue;
    // Conversation::Open says what is wrong if it is another model's.
    turn_.history.clear();
    break;
  }
  return absl::OkStatus();
}

absl::Status GenerateJob::RunConversation() {
  CAIRN_ASSIGN_OR_RETURN(const KvStats stats, runtime_->node->Stats());
  MakeRoom(stats, policy_.On(runtime_->options.policy), std::ssize(turn_.prompt));
  CAIRN_RETURN_IF_ERROR(ReadHistory());
  absl::Status status = RunOpened();
  while (absl::IsDataLoss(status)) {
    status = Repair(status);
    if (!status.ok()) break;
    status = RunOpened();
  }
  return started_ && !ephemeral_ ? WithWhatIsKept(status) : status;
}

absl::Status GenerateJob::WithWhatIsKept(const absl::Status& status) const {
  return Reworded(status, fmt::format("{}; conversation {} keeps {} tokens{}", Message(status),
                                      conversation_.id, durable_token_count_,
                                      lost_token_count_ == 0
                                          ? ""
                                          : fmt::format(", without the last {} of the answer",
                                                        lost_token_count_)));
}

absl::Status GenerateJob::RunOpened() {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Conversation> conversation,
                         Conversation::Open(runtime_->deps(memory_), conversation_, policy_));
  // Window and buffers come as messages, which are more than what is made of them.
  if (memory_.used_bytes() >= kReturnedBytesMin) ReturnFreedMemory();
  if (!messages_.empty() && turn_.prompt.empty()) {
    CAIRN_RETURN_IF_ERROR(WriteMessagesBehind(*conversation));
  }
  const std::int64_t reused_token_count = conversation->token_count() - repaired_count_;
  conversation_.uid = conversation->uid();
  reused_token_count_ = reused_token_count;
  durable_token_count_ = conversation->durable_token_count();
  if (expected_token_count_.value_or(reused_token_count) != reused_token_count) {
    return FailedPrecondition(
        "conversation {} has {} tokens, but the request is to follow {}: somebody else went on "
        "with "
        "it, or the store is an older copy; read it, then go on from what it has",
        conversation_.id, reused_token_count, *expected_token_count_);
  }
  if (kept_ != nullptr) CAIRN_RETURN_IF_ERROR(CheckHeldTokens(*conversation));
  CAIRN_RETURN_IF_ERROR(conversation->CheckRoom(std::ssize(turn_.prompt), turn_.tokens_max > 0));
  if (state_.damaged_conversations().Has(conversation_)) {
    return DataLoss("conversation {}: an earlier turn found stored keys and values damaged",
                    conversation_.id);
  }
  exact_ = IsExact(*conversation);
  SendStarted(*conversation);
  const TurnObserver observer{
      .prefill = [this](std::int64_t done) { SendProgress(done); },
      .token = [this](std::int32_t token, std::string_view text,
                      const LogProbabilities* likely) { SendToken(token, text, likely); }};
  const absl::StatusOr<TurnResult> result =
      Generate(*conversation, *runtime_->tokenizer, turn_, observer, *stop_);
  seals_ = conversation->seals();
  if (result.ok()) {
    held_token_count_ = conversation->token_count();
    SendFinished(*conversation, *result, reused_token_count);
    return absl::OkStatus();
  }
  durable_token_count_ = conversation->durable_token_count();
  CountLostTokens(*conversation, reused_token_count);
  // The store is full: what is kept for later goes before what is asked for now.
  if (absl::IsResourceExhausted(result.status()) && runtime_->kept != nullptr) {
    runtime_->kept->DropAll();
  }
  return result.status();
}

void GenerateJob::CountLostTokens(const Conversation& conversation,
                                  std::int64_t reused_token_count) {
  // Who sends the whole history again loses nothing, and nobody wants an ephemeral one back.
  if (ephemeral_) return;
  const std::int64_t stored_count =
      conversation.durable_token_count() - reused_token_count - PromptTokenCount();
  lost_token_count_ =
      shown_token_count_ - std::clamp(stored_count, std::int64_t{0}, shown_token_count_);
  if (lost_token_count_ == 0) return;
  LogWarning("generation session={} shown_tokens={} lost_tokens={}", conversation_.id,
             shown_token_count_, lost_token_count_);
  state_.NoteLostTokens(lost_token_count_);
}

bool GenerateJob::IsExact(const Conversation& conversation) const {
  if (!conversation.policy_choice().selects() || conversation.token_count() == 0) return true;
  return turn_.prompt_end != PromptEnd::kTogether && turn_.prompt.size() == 1 &&
         conversation.seals().IsFreshAt(conversation.token_count());
}

void GenerateJob::MakeRoom(const KvStats& stats, const PolicyChoice& policy,
                           std::int64_t token_count) {
  if (runtime_->kept == nullptr) return;
  runtime_->kept->MakeRoom(
      stats, PromptFlashBytes(runtime_->options, policy,
                              token_count * runtime_->identity.layout.TokenBytes(), token_count));
}

void GenerateJob::SendStarted(const Conversation& conversation) {
  // Once, also if what is stored turned out to be damaged and all is computed again.
  if (std::exchange(started_, true)) return;
  Send(StartedEvent(conversation, std::ssize(turn_.prompt)));
}

bool GenerateJob::IsTimeForProgress(bool last) {
  const Clock::time_point now = Clock::now();
  if (!last && now < next_progress_) return false;
  next_progress_ = now + kProgressInterval;
  return true;
}

void GenerateJob::SendProgress(std::int64_t done_token_count) {
  if (!IsTimeForProgress(done_token_count == std::ssize(turn_.prompt))) return;
  Send(PrefillEvent(done_token_count + repaired_count_, PromptTokenCount()));
}

void GenerateJob::SendToken(std::int32_t id, std::string_view text,
                            const LogProbabilities* likely) {
  if (kept_ != nullptr) tokens_.push_back(id);
  ++shown_token_count_;
  if (first_token_time_.count() == 0) first_token_time_ = Clock::now() - start_;
  Send(TokenEvent(*runtime_->tokenizer, id, text, likely));
}

void GenerateJob::SendFinished(const Conversation& conversation, const TurnResult& result,
                               std::int64_t reused_token_count) {
  v1::GenerateEvent event;
  v1::Finished& finished = *event.mutable_finished();
  FillFinished(conversation, result, finished);
  finished.set_prompt_token_count(PromptTokenCount());
  finished.set_reused_token_count(reused_token_count);
  finished.set_exact(exact_);
  *finished.mutable_queue_time() = ToDuration(queue_time_);
  *finished.mutable_first_token_time() = ToDuration(first_token_time_);
  finished.set_kv_dram_peak_bytes(memory_.peak_bytes());
  // The turn is durable: numbers that cannot be had do not make it fail.
  const absl::StatusOr<KvStats> stats = runtime_->node->Stats();
  if (stats.ok()) {
    finished.set_io_engine(stats->io_engine);
    finished.set_kv_dram_peak_bytes(memory_.peak_bytes() + stats->dram_peak_bytes);
  }
  const absl::StatusOr<SessionInfo> session =
      FindSession(*runtime_->node, {conversation.id(), conversation.uid()});
  if (session.ok()) finished.set_kv_flash_bytes(session->flash_bytes);
  Send(std::move(event));
}

void GenerateJob::Send(v1::GenerateEvent event) {
  const absl::Status pushed = events_.Push(std::move(event), *stop_);
  if (pushed.ok() || !stop_->Check().ok()) return;
  slow_client_ = pushed;
  stop_->Cancel();
}

std::optional<v1::GenerateEvent> NextEvent(GenerateJob& job, const std::function<bool()>& connected,
                                           Clock::time_point until) {
  while (!job.events().done()) {
    std::optional<v1::GenerateEvent> event = job.events().Pop(kCancelCheckInterval);
    if (!connected()) job.stop()->Cancel();
    if (event.has_value()) return event;
    if (Clock::now() >= until) break;
  }
  return std::nullopt;
}

}  // namespace cairn::compute
