// What a turn does about keys and values that fail their check: the whole conversation is computed
// again from its token ids, which lie in the metadata, in a session of its own. When that is
// durable it takes the conversation's place, in one step of the KV node; until then the
// conversation is as it was.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "common/log/log.h"
#include "compute-node/service/turn.h"

namespace cairn::compute {
namespace {

// Says nothing about whether the tokens can be computed: another turn may try.
bool IsPassing(const absl::Status& status) {
  return IsStop(status) || absl::IsUnavailable(status) || absl::IsAborted(status);
}

}  // namespace

absl::Status Turn::Repair(const absl::Status& damage) {
  // Nobody goes on with it, or the client has all of its text and sends it again.
  if (asked_.ephemeral) return damage;
  if (sink_.shown_token_count() > 0) return RepairLater(damage);
  if (std::exchange(repaired_, true)) return damage;
  absl::StatusOr<LastTokens> stored =
      ReadLastTokens(*runtime_.node, asked_.conversation, std::numeric_limits<std::int64_t>::max(),
                     [this] { return stop_.Check(); });
  absl::Status status = stored.status();
  if (status.ok()) {
    if (!AreOfTurn(stored->ids)) return damage;
    // Only the last token of a prompt gives the first one of the answer.
    const std::int64_t of_prompt = CountOfPrompt(std::ssize(stored->ids));
    if (of_prompt > 0 && of_prompt == std::ssize(asked_.turn.prompt)) return RepairLater(damage);
    asked_.conversation.uid = std::move(stored->session_uid);
    status = RepairNow(damage, *stored);
  }
  if (status.ok() || IsPassing(status)) return status;
  return DataLoss(
      "{}; computing the conversation again from its tokens failed, and what is stored of it is as "
      "it was: {}{}",
      Message(damage), Message(status),
      absl::IsResourceExhausted(status)
          ? "; there must be room for a second copy until it is done: then go on with it again"
          : "");
}

absl::Status Turn::RepairLater(const absl::Status& damage) {
  const absl::StatusOr<SessionInfo> stored = FindSession(*runtime_.node, asked_.conversation);
  // That is an older copy of the store, or none: nothing is known to be damaged.
  if (!stored.ok() || stored->token_count < durable_token_count_) return damage;
  state_.damaged_conversations().Note(asked_.conversation);
  return DataLoss("{}; its next turn computes it again from its tokens", Message(damage));
}

bool Turn::AreOfTurn(std::span<const std::int32_t> tokens) const {
  const std::int64_t of_prompt = CountOfPrompt(std::ssize(tokens));
  // Fewer than were durable: an older copy of the store was put back.
  const bool all = !tokens.empty() && std::ssize(tokens) >= durable_token_count_;
  if (!all || of_prompt < 0 || of_prompt > std::ssize(asked_.turn.prompt)) return false;
  // Else somebody else went on with the conversation.
  const auto stored = tokens.last(static_cast<std::size_t>(of_prompt));
  return std::equal(stored.begin(), stored.end(), asked_.turn.prompt.begin());
}

absl::Status Turn::RepairNow(const absl::Status& damage, const LastTokens& stored) {
  KvNode& node = *runtime_.node;
  const std::int64_t count = std::ssize(stored.ids);
  CAIRN_ASSIGN_OR_RETURN(const StoredPolicy policy, ReadStoredPolicy(node, asked_.conversation));
  LogWarning("conversation session={} is damaged and computed again tokens={}: {}", conversation(),
             count, Message(damage));
  sink_.SendRecomputing(0, count, Message(damage));
  live_.SetPhase(LivePhase::kRecomputing, 0, count);
  CAIRN_ASSIGN_OR_RETURN(const KvStats stats, node.Stats());
  MakeRoom(stats, policy.choice, count);
  CAIRN_ASSIGN_OR_RETURN(const SessionRef again, ComputeAgain(policy, stored));
  absl::Status superseded = node.Supersede({asked_.conversation, again});
  state_.open_conversations().Give(again.id);
  if (!superseded.ok()) {
    DeleteEphemeral(node, again);
    return superseded;
  }
  state_.damaged_conversations().Forget(asked_.conversation);
  durable_token_count_ = count;
  LogInfo("conversation session={} was computed again tokens={}", conversation(), count);
  TakeFromPrompt(CountOfPrompt(count));
  return absl::OkStatus();
}

absl::StatusOr<SessionRef> Turn::ComputeAgain(const StoredPolicy& policy,
                                              const LastTokens& stored) {
  CreateSession create;
  create.key = stored.identity.key;
  create.layout = stored.identity.layout;
  create.label = fmt::format("{}again {}", kOwnLabelStart, conversation());
  create.creator = runtime_.creator;
  create.lifetime = SessionLifetime::kEphemeral;
  CAIRN_ASSIGN_OR_RETURN(SessionRef again, runtime_.node->Create(create));
  // A client that guesses its id may have it.
  absl::Status status = state_.open_conversations().Take(again.id, stop_);
  const bool taken = status.ok();
  if (taken) status = ComputeInto(again, policy, stored.ids);
  if (status.ok()) return again;
  DeleteEphemeral(*runtime_.node, again);
  if (taken) state_.open_conversations().Give(again.id);
  // What is kept for later goes before what is asked for now.
  if (absl::IsResourceExhausted(status) && runtime_.kept != nullptr) runtime_.kept->DropAll();
  return status;
}

absl::Status Turn::ComputeInto(const SessionRef& again, const StoredPolicy& policy,
                               std::span<const std::int32_t> tokens) {
  // As the conversation has them, whatever new ones are made with.
  if (std::string bits = SmallKeyBitsOf(policy); !bits.empty()) {
    options_.small_key_bits = std::move(bits);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Conversation> conversation,
                         Conversation::Open(Deps(), again, PolicyRequest::Exactly(policy.choice)));
  conversation->set_random_state(policy.random_state);
  const std::int64_t count = std::ssize(tokens);
  return conversation->Prefill(tokens, {}, stop_,
                               [&](std::int64_t done) { sink_.SendRecomputing(done, count, ""); });
}

void Turn::TakeFromPrompt(std::int64_t stored_count) {
  const auto end = asked_.turn.prompt.begin() + stored_count;
  asked_.turn.history.insert(asked_.turn.history.end(), asked_.turn.prompt.begin(), end);
  asked_.turn.prompt.erase(asked_.turn.prompt.begin(), end);
  repaired_count_ += stored_count;
}

}  // namespace cairn::compute
