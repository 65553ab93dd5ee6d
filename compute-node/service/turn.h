// Turn runs one turn of a conversation: creates or opens the conversation, generates, has it
// computed again where stored keys and values turn out to be damaged, and says what is kept of it
// when the turn fails.
//
// Threading:  one thread, the queue's.
// Blocking:   for the KV node's answers, and for the conversation while another turn has it.
// Errors:     those of Conversation and Generate; CANCELLED, DEADLINE_EXCEEDED; FAILED_PRECONDITION
//             the conversation holds something else than the client says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "compute-node/service/event_sink.h"
#include "compute-node/service/generate_request.h"
#include "compute-node/service/kept_history.h"
#include "compute-node/service/runtime.h"
#include "compute-node/service/stored_sessions.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/live_conversations.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

class Turn {
 public:
  // `kept`: where the conversation of a client that sends its whole history again is kept; null: it
  // is not. All but `asked` outlive it.
  Turn(Runtime& runtime, DaemonState& state, AskedTurn asked, PrefixStore* kept, EventSink& sink,
       LiveConversation& live, StopSignal& stop)
      : runtime_(runtime),
        state_(state),
        asked_(std::move(asked)),
        kept_(kept),
        sink_(sink),
        live_(live),
        stop_(stop),
        memory_(&state.memory()),
        options_(runtime.options) {}

  // Once.
  absl::Status Run();

  SessionId conversation() const { return asked_.conversation.id; }
  // Of the prompt that was computed at last.
  std::int64_t prompt_token_count() const { return std::ssize(asked_.turn.prompt); }
  // Whether the conversation holds anything that survives this process.
  bool keeps_anything() const { return durable_token_count_ > 0; }
  // Tokens that were shown and are not stored.
  std::int64_t lost_token_count() const { return lost_token_count_; }
  std::int64_t memory_peak_bytes() const { return memory_.peak_bytes(); }

 private:
  // Creates the conversation, and has it open.
  absl::Status OpenNew();
  // Reads what the penalties count of an existing conversation.
  absl::Status ReadHistory();
  absl::Status RunConversation();
  // For a conversation of the turn.
  ConversationDeps Deps() { return runtime_.deps(options_, memory_, &live_); }
  // What a new conversation has, of what was measured to be best (Tuning).
  void Tune();
  // Opens it and runs the turn in it.
  absl::Status RunOpened();
  // What is to be true of the conversation before the turn begins in it.
  absl::Status CheckOpened(Conversation& conversation);
  // What a conversation of `kept_` does instead: it goes on from what is kept, and is kept.
  absl::Status RunKept();
  absl::Status RunAndKeep(KeptHistory history);
  bool LeavesWhole(const absl::Status& status) const;
  // Of the turn in the conversation as it is before.
  bool IsExact(const Conversation& conversation) const;
  void MakeRoom(const KvStats& stats, const PolicyChoice& policy, std::int64_t token_count);
  void SendFinished(const Conversation& conversation, const TurnResult& result);
  // Sets the counts of what was lost, behind a turn that failed.
  void CountLostTokens(const Conversation& conversation);
  // What the status says of the conversation behind an error.
  absl::Status WithWhatIsKept(const absl::Status& status) const;
  // Of the prompt as it was asked for.
  std::int64_t AskedTokenCount() const { return prompt_token_count() + repaired_count_; }

  // ---- turn_repair.cc ----
  // What the turn does about damage that it found: OK if the conversation was computed again, and
  // the turn is to be run from there; else how it ends.
  absl::Status Repair(const absl::Status& damage);
  // The next turn does it.
  absl::Status RepairLater(const absl::Status& damage);
  absl::Status RepairNow(const absl::Status& damage, const LastTokens& stored);
  // Whether these are the tokens that the turn found, and as many of its prompt as it has stored.
  bool AreOfTurn(std::span<const std::int32_t> tokens) const;
  // How many of them are of the prompt. REQUIRES: AreOfTurn.
  std::int64_t CountOfPrompt(std::int64_t token_count) const {
    return token_count - reused_token_count_.value_or(token_count);
  }
  // A session of its own that holds `stored`, computed with the conversation's identity and policy.
  absl::StatusOr<SessionRef> ComputeAgain(const StoredPolicy& policy, const LastTokens& stored);
  absl::Status ComputeInto(const SessionRef& again, const StoredPolicy& policy,
                           std::span<const std::int32_t> tokens);
  // Tokens of the prompt that an earlier part of the turn has stored are not its prompt any more.
  void TakeFromPrompt(std::int64_t stored_count);

  Runtime& runtime_;
  DaemonState& state_;
  AskedTurn asked_;
  PrefixStore* const kept_;
  EventSink& sink_;
  LiveConversation& live_;
  StopSignal& stop_;
  KvMemory memory_;
  SessionOptions options_;
  KeptHistory history_;  // with kept_ only
  bool exact_ = true;    // see Finished.exact
  // Of the conversation: as the turn found it, and what is known to be durable.
  std::optional<std::int64_t> reused_token_count_;
  std::int64_t durable_token_count_ = 0;
  std::int64_t repaired_count_ = 0;  // tokens of the prompt that were computed again with the rest
  bool repaired_ = false;            // once in a turn
  std::int64_t lost_token_count_ = 0;         // that were shown
  std::int64_t lost_prompt_token_count_ = 0;  // that were computed or not
};

}  // namespace cairn::compute
