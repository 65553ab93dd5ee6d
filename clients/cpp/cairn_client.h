// CairnClient: text generation with long contexts, from C++. It talks to cairn-compute-node over a
// Unix socket.
//
//   absl::StatusOr<std::unique_ptr<cairn::CairnClient>> client =
//       cairn::CairnClient::Connect(cairn::DefaultComputeSocket());
//   cairn::GenerateOptions options;
//   options.prompt = "Q: What is the code of the red door?\nA:";
//   options.on_text = [](std::string_view text) { std::cout << text; };
//   absl::StatusOr<cairn::GenerateResult> result = (*client)->Generate(options);
//   // Next turn: options.conversation_id = result->conversation_id.
//
// A conversation's id means the conversation that this client has heard of by it: should the daemon
// have another store of conversations meanwhile, what has the id there is not touched
// (FAILED_PRECONDITION or NOT_FOUND).
//
// A client outlives the daemon that it was made for: each call goes to what serves the socket then.
//
// Threading:  safe from any thread; callbacks run on the thread that called Generate.
// Blocking:   every method waits for the daemon's answer: Generate for as long as the text takes,
//             the others at most kCallTimeMax.
// Errors:     those of proto/cairn/compute/v1/inference.proto. UNAVAILABLE: nothing serves the
//             socket, or the daemon is starting or stopping; the message says what to do.
//             PERMISSION_DENIED: the socket is another user's. CANCELLED: the caller's own
//             CancelToken. Texts that are not UTF-8 are INVALID_ARGUMENT and never sent.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace cairn {

inline constexpr std::chrono::seconds kCallTimeMax{60};
// A prompt's text; a conversation may take several.
inline constexpr std::int64_t kPromptBytesMax = std::int64_t{16} << 20;

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// A token to choose more or less often: `bias` is added to its logit. Up to 100; -100 and less,
// also -infinity: never this token.
struct LogitBias {
  std::int32_t token_id = 0;
  float bias = 0;
};

// How likely a token was in the model's own distribution, before bias, penalties and temperature.
struct TokenLogprob {
  std::int32_t token_id = 0;
  std::string bytes;  // its own, which may be a part of a UTF-8 character; a special token's name
  float logprob = 0;  // natural
};

// See inference.proto's Sampling for what the numbers of the sampler mean and may be.
struct GenerateOptions {
  // The prompt: text; token ids if `prompt_tokens` is not empty; messages if `messages` is not
  // empty, for models with a chat template. Messages are those that the conversation does not hold
  // yet.
  std::string prompt;
  std::vector<std::int32_t> prompt_tokens;
  std::vector<ChatMessage> messages;
  // Whether the text may contain special tokens such as <|eot_id|>.
  bool parse_special = false;
  // 0: a new conversation.
  std::int64_t conversation_id = 0;
  // What it holds as far as the caller knows; FAILED_PRECONDITION if it holds others.
  std::optional<std::int64_t> conversation_token_count{};
  // Tokens to generate at most; negative: only store the prompt.
  std::int32_t tokens_max = 256;
  // 0: always the most likely token.
  float temperature = 0;
  std::int32_t top_k = 0;        // 0: all
  float top_p = 0;               // 0: all
  float min_p = 0;               // 0: all
  float typical_p = 0;           // 0: all
  float repetition_penalty = 0;  // 0 and 1: none
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::int32_t penalty_last_tokens = 0;  // 0: 64, -1: all
  std::vector<LogitBias> logit_bias;     // at most 1024
  std::uint64_t seed = 0;                // 0: a random one
  // Generation ends before the first of these texts, and before the first of these tokens.
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  // Of a new conversation, which keeps it; see inference.proto's Retrieval. Empty, 0 or unset: as
  // the conversation has it, a new one as the daemon is configured.
  std::string policy;
  float select_percent = 0;
  std::int32_t select_tokens_min = 0;
  std::int32_t select_tokens_max = 0;
  std::int32_t cluster_target_entries = 0;
  std::uint64_t clustering_seed = 0;
  std::optional<float> estimate_percent{};
  std::optional<bool> select_ahead{};
  // For measurements: how many of the prompt's first tokens are prefilled; 0: see inference.proto.
  std::int32_t prefill_tokens_max = 0;
  // Shown in lists.
  std::string label;
  // Whether the conversation is deleted at the end.
  bool ephemeral = false;
  // Generate on after the model's end-of-text token.
  bool ignore_end = false;
  // The whole generation must end by then.
  std::optional<std::chrono::milliseconds> time_max;

  // Callbacks; each may be empty. Text comes in whole UTF-8 characters.
  std::function<void(std::int64_t conversation_id, std::int64_t reused_token_count,
                     std::int64_t prompt_token_count)>
      on_started;
  std::function<void(std::int64_t done_token_count, std::int64_t prompt_token_count)> on_prefill;
  // Stored keys and values of the conversation are damaged: its tokens are computed again before
  // the turn goes on. `reason` says what was damaged, the first time; then it is empty. May come
  // before on_started.
  std::function<void(std::int64_t done_token_count, std::int64_t token_count,
                     std::string_view reason)>
      on_recomputing;
  // The daemon waits for something, which it names, and goes on by itself when that is there.
  std::function<void(std::string_view reason)> on_waiting;
  std::function<void(std::string_view text)> on_text;
  std::function<void(std::int32_t token_id)> on_token;
  // Behind on_token, if set: how likely the token was, and the `top_logprob_count` (at most 20)
  // most likely ones in its place.
  std::function<void(const TokenLogprob& token, const std::vector<TokenLogprob>& top)> on_logprob;
  std::int32_t top_logprob_count = 0;
};

enum class FinishReason { kEnd, kLength, kStop, kContext };

struct GenerateResult {
  std::int64_t conversation_id = 0;
  FinishReason reason = FinishReason::kLength;
  std::string text;
  std::int64_t reused_token_count = 0;
  std::int64_t prompt_token_count = 0;
  std::int64_t generated_token_count = 0;
  std::int64_t conversation_token_count = 0;
  std::chrono::nanoseconds queue_time{0};  // until its turn came; a part of first_token_time
  std::chrono::nanoseconds first_token_time{0};
  std::chrono::nanoseconds prefill_time{0};
  std::chrono::nanoseconds decode_time{0};  // of all generated tokens but the first
  // While keys and values were fetched, over the prompt and all tokens; and of that, waited for.
  std::chrono::nanoseconds io_time{0};
  std::chrono::nanoseconds exposed_io_time{0};
  std::int64_t kv_flash_bytes = 0;
  std::int64_t kv_dram_peak_bytes = 0;
  std::int64_t kv_read_bytes = 0;
  std::string io_engine;
  std::int32_t reconnect_count = 0;
  std::string policy;

  // Generated tokens a second, without the first; 0 if there were fewer than two.
  double TokensPerSecond() const;
};

struct ConversationInfo {
  std::int64_t conversation_id = 0;
  std::string label;
  std::int64_t token_count = 0;
  std::int64_t flash_bytes = 0;         // that it alone needs: what deleting it gives back
  std::int64_t shared_flash_bytes = 0;  // that others need too, its forks or what it is a fork of
  std::chrono::system_clock::time_point create_time;
  std::optional<std::chrono::system_clock::time_point> update_time;
  bool usable = false;          // whether the daemon can go on with it
  std::string unusable_reason;  // else why not
};

struct ModelDescription {
  std::string name;
  std::string digest;  // 32 bytes
  std::int64_t context_token_count = 0;
  std::int64_t kv_token_bytes = 0;
  std::int32_t vocab_count = 0;
  std::string turn_template;  // {} is the turn
  std::vector<std::string> turn_stop;
  std::string chat_template;  // name of its family; empty: it takes no messages
};

enum class DaemonPhase { kLoading, kReady, kStopping };

enum class GenerationPhase { kQueued, kOpening, kPrefilling, kDecoding, kRecomputing, kWaiting };

// One that runs or waits, as it was behind its last pass over the model.
struct GenerationStatus {
  GenerationPhase phase = GenerationPhase::kQueued;
  std::int64_t conversation_id = 0;  // 0: a new one, which is not made yet
  std::string label;                 // of a new one
  std::string policy;                // empty until the conversation is open
  std::int64_t token_count = 0;
  std::int64_t stored_token_count = 0;
  // Of the prompt, or of what is computed again.
  std::int64_t done_token_count = 0;
  std::int64_t total_token_count = 0;
  std::int64_t kv_dram_bytes = 0;
  std::int64_t kv_read_bytes = 0;
};

struct DaemonStatus {
  DaemonPhase phase = DaemonPhase::kLoading;
  std::int64_t model_loaded_bytes = 0;
  std::int64_t model_size_bytes = 0;
  std::int32_t generation_count = 0;
  std::int64_t kv_dram_bytes = 0;
  std::string kv_node_problem;  // why the KV node did not answer the daemon; empty: it did
  std::vector<GenerationStatus> generations;  // in the order in which they were asked for
};

struct StoreStatus {
  std::string io_engine;  // "memory": in the daemon's own
  std::int64_t used_bytes = 0;
  std::int64_t size_bytes = 0;
  std::int64_t conversation_count = 0;
};

// Ends a Generate from another thread, a signal handler or one of its callbacks.
class CancelToken {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void Reset() { cancelled_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> cancelled_{false};
};

class CairnClient {
 public:
  // Connects and asks the daemon how it is. UNAVAILABLE if nobody serves the socket.
  static absl::StatusOr<std::unique_ptr<CairnClient>> Connect(const std::string& socket_path);
  ~CairnClient();
  CairnClient(const CairnClient&) = delete;
  CairnClient& operator=(const CairnClient&) = delete;

  // Appends the prompt and generates. What was generated before an error or a cancellation stays
  // in the conversation; on_started told its id. A new conversation that ends before its prompt was
  // computed may be gone. `cancel` may be null.
  absl::StatusOr<GenerateResult> Generate(const GenerateOptions& options,
                                          const CancelToken* cancel = nullptr);

  // All conversations, newest first.
  absl::StatusOr<std::vector<ConversationInfo>> ListConversations();
  // The conversation's text; `info` may be null.
  absl::StatusOr<std::string> ReadConversation(std::int64_t conversation_id,
                                               ConversationInfo* info = nullptr);
  // What the list says of it. NOT_FOUND if it is not there.
  absl::StatusOr<ConversationInfo> FindConversation(std::int64_t conversation_id);
  // Of a conversation whose Generate was cancelled, which the daemon notices a moment later: waits
  // until that has ended, and answers how many tokens are stored; 0: the conversation is gone, for
  // it held none. DEADLINE_EXCEEDED after `time_max`.
  absl::StatusOr<std::int64_t> WaitForKeptTokens(std::int64_t conversation_id,
                                                 std::chrono::milliseconds time_max);
  absl::Status DeleteConversation(std::int64_t conversation_id);
  // A new conversation that begins with the first `token_count` tokens of this one; 0: with all.
  // Answers its id.
  absl::StatusOr<std::int64_t> ForkConversation(std::int64_t conversation_id,
                                                std::int64_t token_count,
                                                const std::string& label = "");

  absl::StatusOr<std::vector<std::int32_t>> Tokenize(const std::string& text, bool special);
  absl::StatusOr<ModelDescription> GetModel();
  absl::StatusOr<DaemonStatus> GetStatus();
  // DEADLINE_EXCEEDED if cairn-kv-node does not answer within `time_max`.
  absl::StatusOr<StoreStatus> GetStore(std::chrono::milliseconds time_max);

  // Returns when the daemon generates; `progress` (may be empty) hears the model's bytes while they
  // are loaded. CANCELLED, or DEADLINE_EXCEEDED after `time_max`.
  absl::Status WaitUntilReady(std::chrono::milliseconds time_max,
                              const std::function<void(const DaemonStatus&)>& progress = nullptr,
                              const CancelToken* cancel = nullptr);

 private:
  struct Impl;
  explicit CairnClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// $CAIRN_SOCKET; without that variable where the daemon listens unless its configuration says
// otherwise, which depends on the environment too.
std::string DefaultComputeSocket();

}  // namespace cairn
