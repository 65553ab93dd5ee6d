// Conversation is one sequence of tokens whose keys and values exist: a session of the KV node, the
// window, the retrieval policy. It computes tokens and keeps them durable; choosing tokens and text
// is generation.h's business.
//
// Durability: Prefill returns with all its tokens durable. Step's tokens are kept by the session
//             until a checkpoint covers them: a lost KV node is resumed, a lost compute node falls
//             back to the last checkpoint. Checkpoint makes all tokens durable. In prefill
//             nothing is kept: after a loss the chunk is computed again from the last checkpoint,
//             at most kPrefillTriesMax times in a row. What is made better when all are durable
//             is given up sooner.
// Threading:  one thread; passes of several conversations are computed together, on one of their
//             threads (forward_scheduler.h).
// Errors:     NOT_FOUND no such session; FAILED_PRECONDITION its identity is not served;
//             INVALID_ARGUMENT the context is too short, or the session has another policy;
//             CANCELLED, DEADLINE_EXCEEDED; UNAVAILABLE the KV node was lost too often; those of
//             KvSession, of which ABORTED only for another owner. After an error of Prefill only
//             destruction is allowed; after CANCELLED or DEADLINE_EXCEEDED of Step the
//             conversation is as before the step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/retrieval/policy_choice.h"
#include "compute-node/retrieval/policy_registry.h"
#include "compute-node/session/attention/stored_attention.h"
#include "compute-node/session/entries/prompt_seals.h"
#include "compute-node/session/entries/stored_policy.h"
#include "compute-node/session/forward_scheduler.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/live_conversations.h"
#include "compute-node/session/options.h"
#include "compute-node/session/served_model.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr int kPrefillTriesMax = 16;
// Of making the clusters of a prompt anew.
inline constexpr int kRegroupTriesMax = 4;
// How often a step is computed when its answer is void.
inline constexpr int kStepTriesMax = 3;

// What conversations of one model share; all outlive them.
struct ConversationDeps {
  const ServedModel& served;
  KvNode& node;
  ForwardScheduler& scheduler;
  const SessionOptions& options;
  KvMemory& memory;
  // Another one brings policies of its own.
  std::function<absl::StatusOr<std::unique_ptr<RetrievalPolicy>>(std::string_view name,
                                                                 const PolicyOptions& options)>
      make_policy = MakePolicy;
  // Who is told what they attend; null: nobody.
  AttentionObserver* observer = nullptr;
  // Where it says what it does, between passes; null: nowhere. For one conversation at a time.
  LiveConversation* live = nullptr;
};

// A policy as conversations have it. INVALID_ARGUMENT: there is none that fits the model.
absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicyOf(const ConversationDeps& deps,
                                                              const PolicyChoice& choice);

class Conversation {
 public:
  // Attaches to a session and goes to its last checkpoint. `request`: of its policy.
  static absl::StatusOr<std::unique_ptr<Conversation>> Open(const ConversationDeps& deps,
                                                            const SessionRef& ref,
                                                            const PolicyRequest& request = {});
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  SessionId id() const { return session_->attachment().session_id; }
  const std::string& uid() const { return session_->attachment().uid; }
  const ModelIdentity& identity() const { return identity_; }
  std::int64_t token_count() const { return kv_.token_count(); }
  // Of these, what a checkpoint covers.
  std::int64_t durable_token_count() const { return durable_count_; }
  // Of the model, the configuration, and what the policy's memory has room for.
  std::int64_t context_tokens_max() const;
  const PolicyChoice& policy_choice() const { return choice_; }
  const RetrievalPolicy& policy() const { return *policy_; }
  std::int64_t vocab_size() const { return config_.vocab_size; }
  // Whether it holds these tokens and no others. REQUIRES: nothing was computed since it was open.
  absl::StatusOr<bool> HasExactly(std::span<const std::int32_t> tokens, const StopSignal& stop);
  // The last tokens, `count_max` of them if there are as many. REQUIRES: it is just open.
  absl::StatusOr<std::vector<std::int32_t>> LastTokens(std::int32_t count_max,
                                                       const StopSignal& stop);
  // What the last checkpoint stored with the session; empty if there is none.
  const std::string& stored_random_state() const { return stored_random_state_; }
  std::int32_t reconnect_count() const { return session_->reconnect_count() - first_reconnects_; }

  // What its steps fetched since it was opened.
  const FetchCounts& fetch_counts() const { return kv_.fetch_counts(); }
  // How long it took to open it, and of that to read its index and make it usable.
  std::chrono::nanoseconds open_time() const { return open_time_; }
  std::chrono::nanoseconds index_time() const { return kv_.index_time(); }
  FetchTimes fetch_times() const { return session_->fetch_clock().times(); }

  // See CheckContext.
  absl::Status CheckRoom(std::int64_t token_count, bool answered = false) const;

  // The random state that the next checkpoints store.
  void set_random_state(std::string state) { random_state_ = std::move(state); }

  // Called with the tokens of the prompt that are done, layers counted as shares of their chunk.
  using Progress = std::function<void(std::int64_t done_token_count)>;
  // Computes a prompt. `last_logits` is empty or takes the last token's, vocab_size of them.
  // kSealed: the conversation is sealed behind it, as by Seal.
  absl::Status Prefill(std::span<const std::int32_t> tokens, std::span<float> last_logits,
                       const StopSignal& stop, const Progress& progress,
                       CheckpointEnd end = CheckpointEnd::kOpen);

  // Computes one token and the logits for the next one (unless `logits` is empty).
  absl::Status Step(std::int32_t token, std::span<float> logits, const StopSignal& stop);

  // Returns when all tokens are durable. After CANCELLED or DEADLINE_EXCEEDED it may be called
  // again.
  absl::Status Checkpoint(const StopSignal& stop);
  // Waits while the KV node is away, so that nothing is shown that could not be stored.
  absl::Status AwaitStore(const StopSignal& stop);

  // The same, and seals the session: a fork that begins here goes on as this conversation does.
  // Nothing is done where it is sealed already.
  absl::Status Seal(const StopSignal& stop);
  // Where it is sealed, by Seal or because it began as a fork there.
  const PromptSeals& seals() const { return seals_; }

 private:
  enum class Sealing { kNo, kYes, kFreshPrompt };  // the last: see PromptSeals::AddFresh
  Conversation(const ConversationDeps& deps, std::unique_ptr<KvSession> session,
               PolicyChoice choice, std::unique_ptr<RetrievalPolicy> policy);
  // `stored`: what the checkpoint has of the policy, if it was read already.
  absl::Status Restore(std::optional<StoredPolicy> stored);
  // Goes back to the last checkpoint after `lost`; returns `lost` if that is no loss, UNAVAILABLE
  // if the tries are used up.
  absl::Status Recover(absl::Status lost, const StopSignal& stop, int& tries);
  absl::Status Compute(std::span<const std::int32_t> tokens, std::span<float> last_logits,
                       const StopSignal& stop, StoredAttention::LayerDone layer_done);
  absl::Status PrefillChunk(std::span<const std::int32_t> tokens, std::span<float> last_logits,
                            const StopSignal& stop, const Progress& progress,
                            std::int64_t done_before, Sealing sealing);
  // Behind a prompt that was computed in several chunks and is most of the conversation.
  absl::Status RegroupPrompt(const StopSignal& stop, Sealing sealing);
  bool IsSealed(Sealing wanted) const;
  absl::Status SaveAll(const StopSignal& stop, Sealing sealing = Sealing::kNo);
  absl::Status StartCheckpoint(const StopSignal& stop, Sealing sealing = Sealing::kNo);
  absl::Status FinishCheckpoint();
  absl::Status CheckpointIfDue(const StopSignal& stop);
  void CountReplayBytes();
  // Between two passes.
  void SaySnapshot() const;

  const ConversationDeps deps_;
  ForwardScheduler::Member member_;
  const ModelConfig& config_;
  const std::int64_t context_tokens_max_;
  std::unique_ptr<KvSession> session_;
  const ModelIdentity identity_;  // the session's
  const std::int64_t checkpoint_bytes_;
  const PolicyChoice choice_;
  std::unique_ptr<RetrievalPolicy> policy_;
  StoredAttention kv_;
  const std::int32_t first_reconnects_;

  std::chrono::nanoseconds open_time_{0};
  std::string stored_random_state_;
  std::string random_state_;
  std::int64_t saved_count_ = 0;              // tokens of the last checkpoint that was sent
  std::int64_t durable_count_ = 0;            // and of the last one that was acknowledged
  std::vector<std::int32_t> unsaved_tokens_;  // from saved_count_ on
  bool checkpoint_sent_ = false;              // and its end not looked at yet
  CheckpointEnd checkpoint_end_ = CheckpointEnd::kOpen;  // of the last one that was sent
  PromptSeals seals_;
  std::int64_t sealed_count_ = 0;  // tokens before the open segment
  std::int64_t replay_bytes_counted_ = 0;
};

// The conversation's context: the smaller of the option and the model's.
std::int64_t ContextTokensMax(const SessionOptions& options, const ModelConfig& config);

// How far the tokens of a prompt are counted: so far beyond the context that a number no longer
// helps.
constexpr std::int64_t CountedTokensMax(std::int64_t context_tokens_max) {
  return 8 * context_tokens_max;
}

// INVALID_ARGUMENT with the numbers if the context does not hold `token_count` tokens of a prompt
// behind the `held_count` that are there, or, if it is to be `answered`, not one more.
absl::Status CheckContext(std::int64_t token_count, std::int64_t held_count, bool answered,
                          std::int64_t context_tokens_max);

}  // namespace cairn::compute
