#include "compute-node/service/turn.h"

#include <algorithm>
#include <utility>

#include "common/base/error_reason.h"
#include "common/base/heap.h"
#include "common/log/log.h"

namespace cairn::compute {
namespace {

// Of an answer, for the length that its conversation is tuned for: who names no limit, or a high
// one, seldom gets as much.
constexpr std::int64_t kTunedAnswerTokensMax = 1024;

// Whether a conversation can be gone on with after a turn that ended so. Others may be damaged, and
// would fail each time.
bool IsWholeAfter(const absl::Status& status) {
  if (ReasonOf(status) == ErrorReason::kContextTooShort) return true;
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status Turn::Run() {
  CAIRN_RETURN_IF_ERROR(stop_.Check());
  live_.SetPhase(LivePhase::kOpening);
  if (kept_ != nullptr) return RunKept();
  const SessionRef& conversation = asked_.conversation;
  const bool is_new = conversation.id.value() == 0;
  CAIRN_RETURN_IF_ERROR(is_new ? OpenNew()
                               : state_.open_conversations().Take(conversation.id, stop_));
  absl::Status status = RunConversation();
  if (asked_.ephemeral) {
    DeleteEphemeral(*runtime_.node, conversation);
  } else if (is_new && !status.ok()) {
    DeleteIfEmpty(*runtime_.node, conversation);
  }
  state_.open_conversations().Give(conversation.id);
  return status;
}

absl::Status Turn::RunKept() {
  const std::vector<std::int32_t> prompt = asked_.turn.prompt;
  if (const std::optional<StoredPrefix> kept = kept_->Take(asked_.identity, prompt, stop_)) {
    asked_.conversation = kept->session;
    asked_.turn.prompt.erase(asked_.turn.prompt.begin(),
                             asked_.turn.prompt.begin() + kept->token_count);
    absl::Status status = RunAndKeep({asked_.identity, prompt, kept->token_count, kept->seals});
    const bool has_shown = sink_.shown_token_count() > 0;
    // One with another policy may have the room that this one lacks.
    const bool lacks_room = ReasonOf(status) == ErrorReason::kContextTooShort && !has_shown;
    if (LeavesWhole(status) && !lacks_room) return status;
    if (!lacks_room) {
      LogWarning("kept conversation session={} is given up: {}", conversation(), Message(status));
      kept_->Remove(kept->origin);
    }
    if (has_shown) {
      if (!absl::IsDataLoss(status)) return status;
      return DataLoss("{}; it was kept of an earlier request and is deleted: ask again",
                      Message(status));
    }
    asked_.turn.prompt = prompt;
    asked_.turn.history.clear();
  }
  CAIRN_RETURN_IF_ERROR(OpenNew());
  return RunAndKeep({asked_.identity, prompt, 0, {}});
}

absl::Status Turn::RunAndKeep(KeptHistory history) {
  history_ = std::move(history);
  absl::Status status = RunConversation();
  history_.CountHeld(*runtime_.node, asked_.conversation, status);
  state_.open_conversations().Give(conversation());
  history_.Keep(*kept_, asked_.conversation, LeavesWhole(status));
  return status;
}

bool Turn::LeavesWhole(const absl::Status& status) const {
  return IsWholeAfter(status) || !runtime_.model->CheckIntact().ok();  // which fails every turn
}

void Turn::Tune() {
  if (!runtime_.tuning.has_value() || asked_.policy.name.has_value()) return;
  const std::int64_t token_count =
      prompt_token_count() + std::min(asked_.turn.tokens_max, kTunedAnswerTokensMax);
  const TunedEntry& entry = runtime_.tuning->For(token_count);
  asked_.policy = asked_.policy.Or(entry.policy);
  options_.small_key_bits = entry.small_key_bits;
  LogInfo("tuned session={} tokens={} entry_tokens={} policy={}", conversation(), token_count,
          entry.context_tokens, *entry.policy.name);
}

absl::Status Turn::OpenNew() {
  CreateSession create;
  create.key = asked_.identity.key;
  create.layout = asked_.identity.layout;
  create.label = kept_ != nullptr ? kept_->label() : asked_.label;
  create.creator = runtime_.creator;
  // Should this process die before the turn has stored anything, nothing is left either.
  const bool is_kept = !asked_.ephemeral || kept_ != nullptr;
  create.lifetime = is_kept ? SessionLifetime::kFromCheckpoint : SessionLifetime::kEphemeral;
  CAIRN_ASSIGN_OR_RETURN(asked_.conversation, runtime_.node->Create(create));
  Tune();
  // Somebody found it in the list, or guessed its id, and has it.
  absl::Status taken = state_.open_conversations().Take(conversation(), stop_);
  if (!taken.ok()) DeleteIfEmpty(*runtime_.node, asked_.conversation);
  return taken;
}

absl::Status Turn::ReadHistory() {
  const std::int64_t count = asked_.turn.sampling.penalties.HistoryTokens() - prompt_token_count();
  if (count <= 0) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(
      LastTokens tokens,
      ReadLastTokens(*runtime_.node, asked_.conversation, count, [this] { return stop_.Check(); }));
  asked_.turn.history = std::move(tokens.ids);
  asked_.conversation.uid = std::move(tokens.session_uid);
  const std::int64_t vocab_size = runtime_.model->config().vocab_size;
  // Conversation::Open says what is wrong if it is another model's.
  const bool is_of_model =
      std::all_of(asked_.turn.history.begin(), asked_.turn.history.end(),
                  [&](std::int32_t token) { return token >= 0 && token < vocab_size; });
  if (!is_of_model) asked_.turn.history.clear();
  return absl::OkStatus();
}

absl::Status Turn::RunConversation() {
  live_.Update([this](LiveSnapshot& now) { now.conversation = asked_.conversation; });
  CAIRN_ASSIGN_OR_RETURN(const KvStats stats, runtime_.node->Stats());
  MakeRoom(stats, asked_.policy.On(runtime_.options.policy), prompt_token_count());
  CAIRN_RETURN_IF_ERROR(ReadHistory());
  absl::Status status = RunOpened();
  while (absl::IsDataLoss(status)) {
    status = Repair(status);
    if (!status.ok()) break;
    status = RunOpened();
  }
  return sink_.started() && !asked_.ephemeral ? WithWhatIsKept(status) : status;
}

absl::Status Turn::WithWhatIsKept(const absl::Status& status) const {
  if (!status.ok() && durable_token_count_ == 0 && lost_token_count_ == 0) {
    return Reworded(status,
                    fmt::format("{}; nothing of the conversation is kept", Message(status)));
  }
  std::string lost;
  if (lost_prompt_token_count_ > 0) {
    lost = fmt::format(", without the last {} of the prompt", lost_prompt_token_count_);
    if (lost_token_count_ > 0) lost += fmt::format(" and the {} of the answer", lost_token_count_);
  } else if (lost_token_count_ > 0) {
    lost = fmt::format(", without the last {} of the answer", lost_token_count_);
  }
  return Reworded(status, fmt::format("{}; conversation {} keeps {} tokens{}", Message(status),
                                      conversation(), durable_token_count_, lost));
}

absl::Status Turn::RunOpened() {
  live_.SetPhase(LivePhase::kOpening);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Conversation> conversation,
                         Conversation::Open(Deps(), asked_.conversation, asked_.policy));
  // Window and buffers come as messages, which are more than what is made of them.
  if (memory_.used_bytes() >= kReturnedBytesMin) ReturnFreedMemory();
  if (!asked_.messages.empty() && asked_.turn.prompt.empty()) {
    CAIRN_RETURN_IF_ERROR(
        GenerateRequestReader(runtime_).WriteMessagesBehind(*conversation, stop_, asked_));
  }
  reused_token_count_ = conversation->token_count() - repaired_count_;
  asked_.conversation.uid = conversation->uid();
  durable_token_count_ = conversation->durable_token_count();
  CAIRN_RETURN_IF_ERROR(CheckOpened(*conversation));
  exact_ = IsExact(*conversation);
  sink_.SendStarted(*conversation, prompt_token_count());
  live_.Update([this](LiveSnapshot& now) { now.conversation = asked_.conversation; });
  live_.SetPhase(LivePhase::kPrefilling, *reused_token_count_, AskedTokenCount());
  const TurnObserver observer{
      .prefill =
          [this](std::int64_t done_count) {
            sink_.SendPrefilled(done_count + repaired_count_, AskedTokenCount());
          },
      .token =
          [this](std::int32_t token, std::string_view text, const LogProbabilities* likely) {
            if (kept_ != nullptr) history_.Add(token);
            if (sink_.shown_token_count() == 0) live_.SetPhase(LivePhase::kDecoding);
            sink_.SendToken(token, text, likely);
          }};
  const absl::StatusOr<TurnResult> result =
      Generate(*conversation, *runtime_.tokenizer, asked_.turn, observer, stop_);
  history_.NoteEnd(*conversation, result.status());
  if (result.ok()) {
    SendFinished(*conversation, *result);
    return absl::OkStatus();
  }
  durable_token_count_ = conversation->durable_token_count();
  CountLostTokens(*conversation);
  // The store is full: what is kept for later goes before what is asked for now.
  if (absl::IsResourceExhausted(result.status()) && runtime_.kept != nullptr) {
    runtime_.kept->DropAll();
  }
  return result.status();
}

absl::Status Turn::CheckOpened(Conversation& conversation) {
  const std::int64_t held_count = *reused_token_count_;
  if (asked_.expected_token_count.value_or(held_count) != held_count) {
    return FailedPrecondition(
        "conversation {} has {} tokens, but the request is to follow {}: somebody else went on "
        "with it, or the store is an older copy; read it, then go on from what it has",
        conversation.id(), held_count, *asked_.expected_token_count);
  }
  if (kept_ != nullptr) CAIRN_RETURN_IF_ERROR(history_.Check(conversation, stop_));
  CAIRN_RETURN_IF_ERROR(conversation.CheckRoom(prompt_token_count(), asked_.turn.tokens_max > 0));
  if (!state_.damaged_conversations().Has(asked_.conversation)) return absl::OkStatus();
  return DataLoss("conversation {}: an earlier turn found stored keys and values damaged",
                  conversation.id());
}

void Turn::CountLostTokens(const Conversation& conversation) {
  // Who sends the whole history again loses nothing, and nobody wants an ephemeral one back.
  if (asked_.ephemeral) return;
  const std::int64_t stored_count =
      conversation.durable_token_count() - *reused_token_count_ - AskedTokenCount();
  lost_token_count_ = sink_.shown_token_count() -
                      std::clamp(stored_count, std::int64_t{0}, sink_.shown_token_count());
  lost_prompt_token_count_ = std::max(-stored_count, std::int64_t{0});
  if (lost_token_count_ == 0) return;
  LogWarning("generation session={} shown_tokens={} lost_tokens={}", conversation.id(),
             sink_.shown_token_count(), lost_token_count_);
  state_.NoteLostTokens(lost_token_count_);
}

bool Turn::IsExact(const Conversation& conversation) const {
  if (!conversation.policy_choice().selects() || conversation.token_count() == 0) return true;
  return asked_.turn.prompt_end != PromptEnd::kTogether && asked_.turn.prompt.size() == 1 &&
         conversation.seals().IsFreshAt(conversation.token_count());
}

void Turn::MakeRoom(const KvStats& stats, const PolicyChoice& policy, std::int64_t token_count) {
  if (runtime_.kept == nullptr) return;
  runtime_.kept->MakeRoom(
      stats, PromptFlashBytes(runtime_.options, policy,
                              token_count * runtime_.served.base.layout.TokenBytes(), token_count));
}

void Turn::SendFinished(const Conversation& conversation, const TurnResult& result) {
  v1::Finished finished;
  finished.set_prompt_token_count(AskedTokenCount());
  finished.set_reused_token_count(*reused_token_count_);
  finished.set_exact(exact_);
  finished.set_kv_dram_peak_bytes(memory_.peak_bytes());
  // The turn is durable: numbers that cannot be had do not make it fail.
  const absl::StatusOr<KvStats> stats = runtime_.node->Stats();
  if (stats.ok()) {
    finished.set_io_engine(stats->io_engine);
    finished.set_kv_dram_peak_bytes(memory_.peak_bytes() + stats->dram_peak_bytes);
  }
  const absl::StatusOr<SessionInfo> session =
      FindSession(*runtime_.node, {conversation.id(), conversation.uid()});
  if (session.ok()) finished.set_kv_flash_bytes(session->flash_bytes);
  sink_.SendFinished(conversation, result, std::move(finished));
}

}  // namespace cairn::compute
