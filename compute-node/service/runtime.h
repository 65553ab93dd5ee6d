// Runtime is all that a loaded model needs to serve: the model, its tokenizer, the KV node, the
// options. DaemonState says whether there is one yet.
//
// Threading:  a Runtime's parts as their own headers say; DaemonState is safe from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/model/chat/chat_template.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "compute-node/service/damaged_conversations.h"
#include "compute-node/service/memory_budget.h"
#include "compute-node/service/open_conversations.h"
#include "compute-node/service/prefix_store.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/forward_scheduler.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/live_conversations.h"
#include "compute-node/session/options.h"
#include "compute-node/session/served_model.h"
#include "compute-node/session/tuning.h"

namespace cairn::compute {

// Of asking whether the KV node serves: one that does answers within some milliseconds.
inline constexpr std::chrono::milliseconds kKvLookTimeMax{2000};
// The same while somebody waits for the answer.
inline constexpr std::chrono::milliseconds kKvLookAgainTimeMax{500};

struct Runtime {
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ForwardScheduler> scheduler;
  std::unique_ptr<KvNode> node;
  // What it can compute; which of that, each conversation says itself.
  ServedModel served;
  SessionOptions options;
  // Of new conversations whose clients name no policy; nullopt: they have that of `options`.
  std::optional<Tuning> tuning;
  std::string turn_template;
  std::vector<std::string> turn_stop;
  // Or why messages are not taken.
  absl::StatusOr<ChatTemplate> chat = NotFound("the model has no chat template");
  // What the KV node knows this daemon by, and none that runs beside it.
  std::string creator;
  // For clients that know no conversations; null: nothing of theirs is kept.
  std::unique_ptr<PrefixStore> kept;

  // Of a prompt, whose tokens behind these are not even found.
  std::int64_t prompt_tokens_max() const {
    return CountedTokensMax(ContextTokensMax(options, model->config()));
  }
  // `live` may be null. `of`: what the conversation is opened with, the daemon's own or as tuned.
  ConversationDeps deps(const SessionOptions& of, KvMemory& memory, LiveConversation* live) {
    return {served, *node, *scheduler, of, memory, MakePolicy, nullptr, live};
  }
};

class DaemonState {
 public:
  enum class Phase { kLoading, kReady, kStopping };

  explicit DaemonState(std::int64_t request_memory_bytes = kRequestMemoryBytesDefault)
      : request_memory_(request_memory_bytes) {}

  Phase phase() const { return phase_.load(); }
  // The runtime, or UNAVAILABLE with what is missing.
  absl::StatusOr<std::shared_ptr<Runtime>> runtime() const;
  void SetLoading(std::int64_t done_bytes, std::int64_t total_bytes);
  void SetReady(std::shared_ptr<Runtime> runtime);
  void SetStopping() { phase_.store(Phase::kStopping); }

  // The daemon cannot go on: calls what SetOnFatal said. The first reason counts.
  void Fail(const absl::Status& why);
  void SetOnFatal(std::function<void()> on_fatal);
  absl::Status fatal() const;

  // Tokens that clients have seen were not stored. They count only while the daemon stops: at any
  // other time the client hears of it and can ask again.
  void NoteLostTokens(std::int64_t count) {
    if (phase() == Phase::kStopping) lost_token_count_.fetch_add(count);
  }
  std::int64_t lost_token_count() const { return lost_token_count_.load(); }

  // Whether the KV node served when it was last asked, or why not; while loading, OK or that it is
  // waited for.
  absl::Status kv_status() const;
  // The same, but asks anew if it did not: it may serve again by now.
  absl::Status KvStatusNow() const;
  void SetKvStatus(absl::Status status);

  std::int64_t loaded_bytes() const { return loaded_bytes_.load(); }
  std::int64_t size_bytes() const { return size_bytes_.load(); }
  // All keys and values in this process.
  KvMemory& memory() { return memory_; }
  // All requests that are being read.
  MemoryBudget& request_memory() { return request_memory_; }
  OpenConversations& open_conversations() { return open_conversations_; }
  // All generations that run or wait.
  LiveConversations& live_conversations() { return live_conversations_; }
  DamagedConversations& damaged_conversations() { return damaged_conversations_; }

 private:
  std::atomic<Phase> phase_{Phase::kLoading};
  std::atomic<std::int64_t> lost_token_count_{0};
  std::atomic<std::int64_t> loaded_bytes_{0};
  std::atomic<std::int64_t> size_bytes_{0};
  KvMemory memory_;
  MemoryBudget request_memory_;
  OpenConversations open_conversations_;
  LiveConversations live_conversations_;
  DamagedConversations damaged_conversations_;
  mutable Mutex mutex_;
  std::shared_ptr<Runtime> runtime_ CAIRN_GUARDED_BY(mutex_);
  absl::Status fatal_ CAIRN_GUARDED_BY(mutex_);
  std::function<void()> on_fatal_ CAIRN_GUARDED_BY(mutex_);
  absl::Status kv_status_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::compute
