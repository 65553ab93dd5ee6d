// GenerateJob is one call of Generate: checked on the call's thread, run on the queue's, its events
// written by the call's thread again.
//
// Threading:  Make and the getters on the call's thread; Run once, on the queue's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/service/event_queue.h"
#include "compute-node/service/runtime.h"
#include "compute-node/session/generation.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr std::int64_t kPromptBytesMax = std::int64_t{16} << 20;

// What a client knows of conversations.
enum class ClientHistory {
  kHeld,       // it names one, and sends what is new
  kSentAgain,  // nothing: it sends the whole history each time
};

class GenerateJob {
 public:
  // INVALID_ARGUMENT for a field out of range, or a prompt that no context holds. With kSentAgain
  // the conversation, which must be an ephemeral one, is kept in the runtime's kept ones instead of
  // deleted, if there are such, and goes on from what is kept.
  static absl::StatusOr<std::shared_ptr<GenerateJob>> Make(
      const v1::GenerateRequest& request, std::shared_ptr<Runtime> runtime, DaemonState& state,
      StopSignal::Clock::time_point deadline, ClientHistory history = ClientHistory::kHeld);

  const std::shared_ptr<StopSignal>& stop() { return stop_; }
  EventQueue& events() { return events_; }
  // 0: a new one.
  SessionId conversation() const { return conversation_.id; }
  // Of messages that become a prompt only when the conversation is open.
  std::int64_t message_bytes() const;
  // How it ended. REQUIRES: events().done().
  absl::Status status() const;

  void Run();

 private:
  GenerateJob(std::shared_ptr<Runtime> runtime, DaemonState& state,
              StopSignal::Clock::time_point deadline);
  absl::Status ReadRequest(const v1::GenerateRequest& request);
  absl::Status ReadMessages(const v1::ChatMessages& messages);
  // Makes the prompt of messages_, and sees that their end ends a generation.
  absl::Status WriteMessages(ChatPosition position);
  // What ends an answer where that is no token, as with a template that was chosen for a model.
  std::string EndText() const;
  // Whether an answer that ends with these tokens was ended by the model.
  bool EndsTurn(const std::vector<std::int32_t>& last_tokens) const;
  // The same behind what the conversation holds.
  absl::Status WriteMessagesBehind(Conversation& conversation);
  absl::Status RunTurn();
  // Creates conversation_, and has it open.
  absl::Status OpenNew();
  // Of the turn in the conversation as it is before.
  bool IsExact(const Conversation& conversation) const;
  void MakeRoom(const KvStats& stats, const PolicyChoice& policy, std::int64_t token_count);
  absl::Status RunConversation();
  // Opens it and runs the turn in it.
  absl::Status RunOpened();
  // What it says of the conversation behind an error.
  absl::Status WithWhatIsKept(const absl::Status& status) const;
  // Of the prompt as it was asked for.
  std::int64_t PromptTokenCount() const { return std::ssize(turn_.prompt) + repaired_count_; }

  // ---- generate_kept_turn.cc ----
  // What RunTurn does for a conversation of `kept_`.
  absl::Status RunKeptTurn();
  // Whether the kept conversation can be gone on with after a turn that ended so.
  bool LeavesWhole(const absl::Status& status) const;
  absl::Status RunAndKeep(const std::vector<std::int32_t>& prompt);
  // Sets held_token_count_ to what the conversation holds now that its turn ended with `status`.
  void CountHeldTokens(const absl::Status& status);
  // That a kept conversation holds the tokens that it is thought to; ABORTED if it does not.
  absl::Status CheckHeldTokens(Conversation& conversation);

  // ---- generate_repair.cc ----
  // What the turn does about damage that it found: OK if the conversation was computed again, and
  // the turn is to be run from there; else how it ends.
  absl::Status Repair(const absl::Status& damage);
  // The next turn does it.
  absl::Status RepairLater(const absl::Status& damage);
  absl::Status RepairNow(const absl::Status& damage, std::span<const std::int32_t> tokens);
  // Whether these are the tokens that the turn found, and as many of its prompt as it has stored.
  bool AreOfTurn(std::span<const std::int32_t> tokens) const;
  // How many of them are of the prompt. REQUIRES: AreOfTurn.
  std::int64_t CountOfPrompt(std::int64_t token_count) const {
    return token_count - reused_token_count_.value_or(token_count);
  }
  // A session of its own that holds `tokens`, computed with the conversation's policy.
  absl::StatusOr<SessionRef> ComputeAgain(const StoredPolicy& policy,
                                          std::span<const std::int32_t> tokens);
  absl::Status ComputeInto(const SessionRef& again, const StoredPolicy& policy,
                           std::span<const std::int32_t> tokens);
  // Tokens of the prompt that an earlier part of the turn has stored are not its prompt any more.
  void TakeFromPrompt(std::int64_t stored_count);
  void SendRecomputing(std::int64_t done_token_count, std::int64_t token_count,
                       const std::string& reason);
  bool IsTimeForProgress(bool last);

  // Sets lost_token_count_, behind a turn that failed.
  void CountLostTokens(const Conversation& conversation, std::int64_t reused_token_count);
  void SendStarted(const Conversation& conversation);
  void SendProgress(std::int64_t done_token_count);
  void SendToken(std::int32_t id, std::string_view text, const LogProbabilities* likely);
  // Reads what the penalties count of an existing conversation.
  absl::Status ReadHistory();
  void SendFinished(const Conversation& conversation, const TurnResult& result,
                    std::int64_t reused_token_count);
  void Send(v1::GenerateEvent event);

  const std::shared_ptr<Runtime> runtime_;
  DaemonState& state_;
  const std::chrono::steady_clock::time_point start_;
  const std::shared_ptr<StopSignal> stop_;
  KvMemory memory_;
  EventQueue events_;
  SessionRef conversation_;                           // id 0: a new one
  std::optional<std::int64_t> expected_token_count_;  // what the client says that it holds
  std::string label_;
  bool ephemeral_ = false;
  PolicyRequest policy_;
  KeptConversations* kept_ = nullptr;
  bool started_ = false;               // the client has heard of the conversation
  std::vector<std::int32_t> tokens_;   // of a kept conversation: what it holds, and then some
  std::int64_t held_token_count_ = 0;  // how many tokens the conversation holds
  PromptSeals seals_;                  // the same conversation's
  bool exact_ = true;                  // see Finished.exact
  // Of the conversation: as the turn found it, and what is known to be durable.
  std::optional<std::int64_t> reused_token_count_;
  std::int64_t durable_token_count_ = 0;
  std::int64_t repaired_count_ = 0;  // tokens of the prompt that were computed again with the rest
  bool repaired_ = false;            // once in a turn
  std::int64_t shown_token_count_ = 0;
  std::int64_t lost_token_count_ = 0;  // that were shown and are not stored
  absl::Status slow_client_;           // the queue's thread's: what ended it, unless OK
  TurnRequest turn_;
  std::vector<ChatMessage> messages_;  // empty: the prompt is text or tokens

  std::chrono::steady_clock::time_point ready_;  // to be submitted
  std::chrono::nanoseconds queue_time_{0};
  std::chrono::nanoseconds first_token_time_{0};
  std::chrono::steady_clock::time_point next_progress_;
  mutable Mutex mutex_;
  absl::Status status_ CAIRN_GUARDED_BY(mutex_);
};

// The next event of a job that was submitted; nullopt when it has ended, or at `until`. Asks
// `connected` from time to time: when it says no, cancels the job, whose last events come all the
// same.
// Threading: one thread for each job. Blocking: until there is one.
std::optional<v1::GenerateEvent> NextEvent(
    GenerateJob& job, const std::function<bool()>& connected,
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());

}  // namespace cairn::compute
