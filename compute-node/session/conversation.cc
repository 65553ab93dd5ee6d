#include "compute-node/session/conversation.h"

#include <algorithm>
#include <utility>

#include <absl/cleanup/cleanup.h>

#include "common/base/check.h"
#include "common/base/error_reason.h"
#include "common/base/heap.h"
#include "common/log/log.h"
#include "common/timeline/timeline.h"

namespace cairn::compute {
namespace {

// While the answer lives, waits for the KV node end when the generation is stopped.
auto InterruptBy(const StopSignal& stop, KvSession& session) {
  session.SetInterrupt([&stop] { return stop.Check(); });
  return absl::MakeCleanup([&session] { session.SetInterrupt(nullptr); });
}

// While the answer lives, nothing is computed until the KV node has answered. `live` may be null.
auto WaitForStore(LiveConversation* live) {
  const auto say = [live](bool waits) {
    if (live == nullptr) return;
    live->Update([waits](LiveSnapshot& now) { now.waits_for_store = waits; });
  };
  say(true);
  return absl::MakeCleanup([say] { say(false); });
}

}  // namespace

std::int64_t ContextTokensMax(const SessionOptions& options, const ModelConfig& config) {
  if (options.context_tokens_max == 0) return config.context_length;
  return std::min(options.context_tokens_max, config.context_length);
}

absl::Status CheckContext(std::int64_t token_count, std::int64_t held_count, bool answered,
                          std::int64_t context_tokens_max) {
  const std::int64_t room = context_tokens_max - held_count - (answered ? 1 : 0);
  if (token_count <= room) return absl::OkStatus();
  const std::string wanted = answered ? ", and an answer needs one at least" : "";
  const std::int64_t counted = std::min(token_count, CountedTokensMax(context_tokens_max));
  const std::string more = counted < token_count ? "more than " : "";
  const absl::Status status =
      held_count == 0
          ? InvalidArgument(
                "the prompt has {}{} tokens, but the context is {} tokens{}: shorten the prompt",
                more, counted, context_tokens_max, wanted)
          : InvalidArgument(
                "the prompt has {0}{1} tokens and the conversation holds {2}: together {0}{3}, but "
                "the context is {4} tokens{5}; shorten the prompt or start a new conversation",
                more, counted, held_count, counted + held_count, context_tokens_max, wanted);
  return WithReason(status, ErrorReason::kContextTooShort);
}

absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicyOf(const ConversationDeps& deps,
                                                              const PolicyChoice& choice) {
  const ModelConfig& config = deps.scheduler.model().config();
  PolicyOptions options;
  options.layout = deps.served.base.layout;
  options.group_size = config.group_size();
  options.rotary_pairs = config.rotary_pairs;
  options.selection = choice.selection;
  options.part_bytes_max = deps.node.part_bytes_max();
  options.fetch_slice_bytes = deps.options.fetch_slice_bytes;
  options.small_keys = KeyCodeShape::Parse(deps.options.small_key_bits).value_or(KeyCodeShape());
  return deps.make_policy(choice.name, options);
}

absl::StatusOr<std::unique_ptr<Conversation>> Conversation::Open(const ConversationDeps& deps,
                                                                 const SessionRef& ref,
                                                                 const PolicyRequest& request) {
  const SessionId session = ref.id;
  const TimelineSpan span(TimelineKind::kTurn, "open", {{"session", session.value()}});
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<KvSession> opened, deps.node.Open(ref));
  CAIRN_RETURN_IF_ERROR(deps.served.CheckServes(session, IdentityOf(opened->attachment())));
  CAIRN_ASSIGN_OR_RETURN(StoredPolicy stored, ChoosePolicy(*opened, request, deps.options.policy));
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<RetrievalPolicy> policy,
                         MakePolicyOf(deps, stored.choice));
  std::unique_ptr<Conversation> conversation(
      new Conversation(deps, std::move(opened), stored.choice, std::move(policy)));
  conversation->seals_ = stored.seals;
  CAIRN_RETURN_IF_ERROR(conversation->Restore(std::move(stored)));
  conversation->open_time_ = std::chrono::steady_clock::now() - start;
  conversation->SaySnapshot();
  return conversation;
}

Conversation::Conversation(const ConversationDeps& deps, std::unique_ptr<KvSession> session,
                           PolicyChoice choice, std::unique_ptr<RetrievalPolicy> policy)
    : deps_(deps),
      member_(deps.scheduler),
      config_(deps.scheduler.model().config()),
      context_tokens_max_(ContextTokensMax(deps.options, config_)),
      session_(std::move(session)),
      identity_(IdentityOf(session_->attachment())),
      checkpoint_bytes_(CheckpointReplayBytes(deps.options, identity_.layout)),
      choice_(std::move(choice)),
      policy_(std::move(policy)),
      kv_(deps.options, config_, deps.scheduler.model().pool(), deps.scheduler.scratch(), *session_,
          *policy_, choice_, deps.memory, deps.observer),
      first_reconnects_(session_->reconnect_count()) {}

Conversation::~Conversation() { deps_.memory.Remove(replay_bytes_counted_); }

absl::Status Conversation::CheckRoom(std::int64_t token_count, bool answered) const {
  const std::int64_t held_count = this->token_count();
  absl::Status status = CheckContext(token_count, held_count, answered, context_tokens_max());
  if (status.ok()) return status;
  CAIRN_RETURN_IF_ERROR(CheckContext(token_count, held_count, answered, context_tokens_max_));
  const std::int64_t wanted_count = held_count + token_count + (answered ? 1 : 0);
  return Reworded(
      status,
      fmt::format("a conversation of {} tokens needs a dram_budget_bytes of {} with policy {}, and "
                  "{} is configured, which is for {}: configure more, or start a new conversation "
                  "with another policy",
                  wanted_count, wanted_count * policy_->keeper().token_memory_bytes(), choice_.name,
                  deps_.options.dram_budget_bytes, context_tokens_max()));
}

std::int64_t Conversation::context_tokens_max() const {
  return std::min(context_tokens_max_,
                  MemoryTokensMax(deps_.options, policy_->keeper().token_memory_bytes()));
}

absl::StatusOr<std::vector<std::int32_t>> Conversation::LastTokens(std::int32_t count_max,
                                                                   const StopSignal& stop) {
  CAIRN_CHECK(unsaved_tokens_.empty());
  const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(token_count(), count_max));
  if (count == 0) return std::vector<std::int32_t>();
  const auto interrupt = InterruptBy(stop, *session_);
  CAIRN_ASSIGN_OR_RETURN(
      TokensReply reply,
      Wait<TokensReply>(session_->StartRead(GetTokens{token_count() - count, count})));
  if (std::ssize(reply.token_ids) != count) {
    return DataLoss("conversation {} has {} tokens, but the store answers {} for the last {}", id(),
                    token_count(), reply.token_ids.size(), count);
  }
  return std::move(reply.token_ids);
}

absl::StatusOr<bool> Conversation::HasExactly(std::span<const std::int32_t> tokens,
                                              const StopSignal& stop) {
  if (std::ssize(tokens) != token_count()) return false;
  const auto interrupt = InterruptBy(stop, *session_);
  while (!tokens.empty()) {
    const std::int64_t first = token_count() - std::ssize(tokens);
    CAIRN_ASSIGN_OR_RETURN(
        const TokensReply reply,
        Wait<TokensReply>(session_->StartRead(GetTokens{first, kGetTokensCountMax})));
    const std::size_t count = reply.token_ids.size();
    if (count == 0 || count > tokens.size() ||
        !std::equal(reply.token_ids.begin(), reply.token_ids.end(), tokens.begin())) {
      return false;
    }
    tokens = tokens.subspan(count);
  }
  return true;
}

absl::Status Conversation::Restore(std::optional<StoredPolicy> stored) {
  CAIRN_RETURN_IF_ERROR(kv_.Restore(std::move(stored), stored_random_state_));
  saved_count_ = kv_.token_count();
  durable_count_ = saved_count_;
  sealed_count_ = session_->attachment().segment_start;
  seals_ = seals_.CutAt(saved_count_);
  unsaved_tokens_.clear();
  checkpoint_sent_ = false;
  return absl::OkStatus();
}

absl::Status Conversation::Prefill(std::span<const std::int32_t> tokens,
                                   std::span<float> last_logits, const StopSignal& stop,
                                   const Progress& progress, CheckpointEnd end) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(std::ssize(tokens)));
  const auto interrupt = InterruptBy(stop, *session_);
  // What a loss goes back to.
  CAIRN_RETURN_IF_ERROR(SaveAll(stop));
  const std::int64_t first = token_count();
  const std::int64_t chunk_tokens = deps_.options.prefill_chunk_tokens;
  const bool regroups = deps_.options.recluster_prompts && std::ssize(tokens) > chunk_tokens &&
                        std::ssize(tokens) >= first;
  Sealing sealing = Sealing::kNo;
  if (end == CheckpointEnd::kSealed) sealing = first == 0 ? Sealing::kFreshPrompt : Sealing::kYes;
  session_->SetReplayMode(ReplayMode::kNothing);
  int tries = 0;
  while (token_count() - first < std::ssize(tokens)) {
    const std::int64_t done = token_count() - first;
    const std::int64_t count = std::min(chunk_tokens, std::ssize(tokens) - done);
    const bool last = done + count == std::ssize(tokens);
    const absl::Status status = PrefillChunk(
        tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)),
        last ? last_logits : std::span<float>(), stop, progress, done,
        last && !regroups ? sealing : Sealing::kNo);
    if (status.ok()) {
      tries = 0;
      continue;
    }
    CAIRN_RETURN_IF_ERROR(Recover(status, stop, tries));
    if (token_count() < first) {
      return DataLoss("conversation {} lost tokens: {} were durable, {} are there", id(), first,
                      token_count());
    }
  }
  if (regroups) CAIRN_RETURN_IF_ERROR(RegroupPrompt(stop, sealing));
  session_->SetReplayMode(ReplayMode::kOperations);
  return absl::OkStatus();
}

absl::Status Conversation::RegroupPrompt(const StopSignal& stop, Sealing sealing) {
  bool regroups = true;
  const PromptSeals seals_before = seals_;
  for (int tries = 0;;) {
    const absl::StatusOr<bool> changed = regroups ? kv_.Regroup(stop) : false;
    absl::Status status = changed.status();
    if (status.ok() && (*changed || !IsSealed(sealing))) {
      // Of the same tokens: what changed are the clusters.
      status = StartCheckpoint(stop, sealing);
      if (status.ok()) status = FinishCheckpoint();
    }
    if (status.ok()) return status;
    // The clusters that there were are on flash until the new ones are, and the prompt is there
    // without: for want of room, or of a KV node that lives for long enough, that is enough.
    const bool loses_each_time = absl::IsAborted(status) && tries >= kRegroupTriesMax;
    if (regroups && (absl::IsResourceExhausted(status) || loses_each_time)) {
      LogWarning("prompt keeps the clusters of its chunks session={} token_count={} reason=\"{}\"",
                 id(), token_count(), Message(status));
      regroups = false;
      tries = 0;
      // Computed now, with new clusters, the prompt would be another one.
      seals_ = seals_before;
      if (sealing == Sealing::kFreshPrompt) sealing = Sealing::kYes;
      const auto wait = WaitForStore(deps_.live);
      status = session_->Reattach();
      if (status.ok()) status = Restore(std::nullopt);
    }
    if (!status.ok()) CAIRN_RETURN_IF_ERROR(Recover(status, stop, tries));
  }
}

absl::Status Conversation::Recover(absl::Status lost, const StopSignal& stop, int& tries) {
  while (absl::IsAborted(lost) && tries < kPrefillTriesMax) {
    ++tries;
    LogWarning("prefill lost session={} token_count={} try={} reason=\"{}\"", id(), token_count(),
               tries, Message(lost));
    CAIRN_RETURN_IF_ERROR(stop.Check());
    const auto wait = WaitForStore(deps_.live);
    // An owner that came in between ends it: this conversation's history is no longer the
    // session's.
    CAIRN_RETURN_IF_ERROR(session_->Reattach());
    lost = Restore(std::nullopt);
  }
  if (!absl::IsAborted(lost)) return lost;
  return Unavailable(
      "cairn-kv-node was lost {} times in a row while the prompt was computed (its log may say "
      "why): go on when it stays up",
      tries);
}

absl::Status Conversation::PrefillChunk(std::span<const std::int32_t> tokens,
                                        std::span<float> last_logits, const StopSignal& stop,
                                        const Progress& progress, std::int64_t done_before,
                                        Sealing sealing) {
  const std::int64_t layer_count = config_.layer_count;
  StoredAttention::LayerDone layer_done;
  // A step may be computed on another turn's thread, which must not wait for this turn's observer.
  if (progress && std::ssize(tokens) > kStepTokensMax) {
    layer_done = [&](std::int32_t layers) {
      progress(done_before + std::ssize(tokens) * layers / layer_count);
    };
  }
  CAIRN_RETURN_IF_ERROR(Compute(tokens, last_logits, stop, layer_done));
  if (progress && !layer_done) progress(done_before + std::ssize(tokens));
  unsaved_tokens_.insert(unsaved_tokens_.end(), tokens.begin(), tokens.end());
  SaySnapshot();
  return SaveAll(stop, sealing);
}

absl::Status Conversation::Compute(std::span<const std::int32_t> tokens,
                                   std::span<float> last_logits, const StopSignal& stop,
                                   StoredAttention::LayerDone layer_done) {
  const TimelineSpan span(
      TimelineKind::kTurn, "pass",
      {{"session", id().value()}, {"position", kv_.token_count()}, {"tokens", std::ssize(tokens)}});
  CAIRN_RETURN_IF_ERROR(kv_.StartPass(std::ssize(tokens), stop, std::move(layer_done)));
  SequencePass pass{tokens,      kv_.token_count(), &kv_, {last_logits, {}},
                    stop.flag(), absl::OkStatus()};
  absl::Status status = deps_.scheduler.Run(member_, pass, stop);
  if (status.ok()) {
    kv_.CommitPass();
  } else {
    kv_.AbandonPass();
  }
  return status;
}

absl::Status Conversation::Step(std::int32_t token, std::span<float> logits,
                                const StopSignal& stop) {
  CAIRN_RETURN_IF_ERROR(CheckRoom(1));
  const auto interrupt = InterruptBy(stop, *session_);
  absl::Status status = Compute({&token, 1}, logits, stop, nullptr);
  // Memory that a lost connection took away under the attention: the step is computed again.
  for (int tries = 1; absl::IsAborted(status) && tries < kStepTriesMax; ++tries) {
    status = Compute({&token, 1}, logits, stop, nullptr);
  }
  if (absl::IsAborted(status)) {
    const auto wait = WaitForStore(deps_.live);
    CAIRN_RETURN_IF_ERROR(session_->AwaitNode());  // ABORTED if another owner came in between
    return Unavailable(
        "cairn-kv-node was lost {} times in a row while one token was computed (its log may say "
        "why): go on when it stays up",
        kStepTriesMax);
  }
  CAIRN_RETURN_IF_ERROR(status);
  unsaved_tokens_.push_back(token);
  CountReplayBytes();
  SaySnapshot();
  absl::Status saved = CheckpointIfDue(stop);
  // The step is done even if a wait for the checkpoint before was stopped.
  return IsStop(saved) ? absl::OkStatus() : saved;
}

absl::Status Conversation::Checkpoint(const StopSignal& stop) {
  const auto interrupt = InterruptBy(stop, *session_);
  return SaveAll(stop);
}

absl::Status Conversation::Seal(const StopSignal& stop) {
  const auto interrupt = InterruptBy(stop, *session_);
  return SaveAll(stop, Sealing::kYes);
}

bool Conversation::IsSealed(Sealing wanted) const {
  return wanted == Sealing::kNo || sealed_count_ == token_count();
}

absl::Status Conversation::SaveAll(const StopSignal& stop, Sealing sealing) {
  member_.Leave();
  CAIRN_RETURN_IF_ERROR(FinishCheckpoint());
  if (saved_count_ == token_count() && IsSealed(sealing)) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(StartCheckpoint(stop, sealing));
  return FinishCheckpoint();
}

absl::Status Conversation::AwaitStore(const StopSignal& stop) {
  const auto interrupt = InterruptBy(stop, *session_);
  const auto wait = WaitForStore(deps_.live);
  return session_->AwaitNode();
}

absl::Status Conversation::CheckpointIfDue(const StopSignal& stop) {
  if (session_->wants_checkpoint()) return SaveAll(stop);
  // While one is being written, operations go on; only a device that falls far behind is waited
  // for.
  if (session_->checkpoint_in_progress() && session_->uncovered_bytes() < 2 * checkpoint_bytes_) {
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(FinishCheckpoint());
  if (session_->uncovered_bytes() < checkpoint_bytes_) return absl::OkStatus();
  return StartCheckpoint(stop);
}

absl::Status Conversation::StartCheckpoint(const StopSignal& stop, Sealing sealing) {
  const TimelineSpan span(TimelineKind::kCheckpoint, "start_checkpoint",
                          {{"session", id().value()}, {"tokens", token_count()}});
  if (sealing == Sealing::kYes) seals_.Add(token_count());
  if (sealing == Sealing::kFreshPrompt) seals_.AddFresh(token_count());
  CAIRN_RETURN_IF_ERROR(kv_.StageCheckpoint(stop, seals_));
  cairn::Checkpoint checkpoint;
  checkpoint.token_count = token_count();
  checkpoint.seal = sealing != Sealing::kNo;
  checkpoint_end_ = checkpoint.seal ? CheckpointEnd::kSealed : CheckpointEnd::kOpen;
  checkpoint.token_ids_start = saved_count_;
  checkpoint.token_ids = std::exchange(unsaved_tokens_, {});
  checkpoint.random_state = random_state_;
  checkpoint.next_cluster_ids = policy_->keeper().NextClusterIds();
  saved_count_ = token_count();
  CAIRN_RETURN_IF_ERROR(session_->Send(std::move(checkpoint)));
  checkpoint_sent_ = true;
  CountReplayBytes();
  return absl::OkStatus();
}

absl::Status Conversation::FinishCheckpoint() {
  if (!checkpoint_sent_) return absl::OkStatus();
  const TimelineSpan span(TimelineKind::kCheckpoint, "wait_for_checkpoint",
                          {{"session", id().value()}, {"tokens", saved_count_}});
  const auto wait = WaitForStore(deps_.live);
  CAIRN_ASSIGN_OR_RETURN(const Checkpointed done, session_->WaitForCheckpoint());
  checkpoint_sent_ = false;
  if (done.token_count != saved_count_) {
    return Internal("checkpoint of conversation {}: {} tokens were sent, {} acknowledged", id(),
                    saved_count_, done.token_count);
  }
  durable_count_ = saved_count_;
  if (checkpoint_end_ == CheckpointEnd::kSealed) sealed_count_ = saved_count_;
  kv_.CheckpointDone(checkpoint_end_);
  ReturnFreedMemory();  // what the replay buffer held
  CountReplayBytes();
  SaySnapshot();
  return absl::OkStatus();
}

void Conversation::CountReplayBytes() {
  const std::int64_t bytes = session_->replay_bytes();
  deps_.memory.Add(bytes - replay_bytes_counted_);
  replay_bytes_counted_ = bytes;
}

void Conversation::SaySnapshot() const {
  if (deps_.live == nullptr) return;
  const std::int64_t kv_read_bytes = fetch_times().read_bytes;
  deps_.live->Update([&](LiveSnapshot& now) {
    now.identity = identity_;
    now.policy = choice_.name;
    now.token_count = token_count();
    now.durable_token_count = durable_count_;
    now.memory_bytes = deps_.memory.used_bytes();
    now.kv_read_bytes = kv_read_bytes;
  });
}

}  // namespace cairn::compute
