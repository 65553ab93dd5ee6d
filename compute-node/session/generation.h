// Generate appends a prompt to a conversation and chooses tokens until something ends it: one turn.
// Afterwards the conversation holds the prompt and every token that was chosen, durably.
//
// Threading:  one thread; observers are called on it, between layers and steps: they must be quick.
// Errors:     those of Conversation. CANCELLED and DEADLINE_EXCEEDED come within one layer of
//             prefill or one step; what had been computed until then is durable, a prompt chunk
//             that was half computed is dropped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/sampler/log_probabilities.h"
#include "compute-node/model/sampler/sampler.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

// How the end of a prompt is computed. A policy that does not select gives the same in each way,
// and has the first.
enum class PromptEnd {
  kTogether,   // with what is before it
  kLastAlone,  // the last token as a step of its own
  // The same, and the conversation is sealed before it: the same prompt behind a fork that begins
  // there has the same answer.
  kSealed,
};

struct TurnRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  // Tokens to generate at most; 0: only store the prompt.
  std::int64_t tokens_max = 256;
  SamplerOptions sampling;
  // Tokens that are right before the prompt, the newest last: the penalties count them. As many as
  // sampling.penalties.HistoryTokens() says, less the prompt, make a turn as it would be with the
  // whole conversation as its prompt.
  std::vector<std::int32_t> history;
  // Whether the observer hears how likely each token was, and so many most likely ones.
  bool log_probabilities = false;
  std::int32_t top_log_probability_count = 0;  // to kTopLogProbabilitiesMax
  // Go on with the random numbers of the conversation's last turn instead of the seed.
  bool keep_random_state = false;
  // Texts before which the answer ends, in what is shown or in that with the names of control
  // tokens, and tokens before which it does.
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_tokens;
  // With this text, unless it is empty, the model ends its answer, as with an end-of-generation
  // token.
  std::string end_text;
  bool ignore_end = false;  // generate on after an end-of-generation token
  // Of the prompt's first tokens, how many are computed together at most; 0: see PrefilledTokens.
  std::int64_t prefill_tokens_max = 0;
  PromptEnd prompt_end = PromptEnd::kTogether;
};

enum class FinishReason { kEnd, kLength, kStop, kContext };

struct TurnResult {
  FinishReason reason = FinishReason::kLength;
  std::int64_t generated_count = 0;
  std::chrono::nanoseconds prefill_time{0};
  std::chrono::nanoseconds decode_time{0};  // from the first token to the last
};

struct TurnObserver {
  std::function<void(std::int64_t done_token_count)> prefill;
  // `likely` is null unless the request asks for it.
  std::function<void(std::int32_t id, std::string_view text, const LogProbabilities* likely)> token;
};

// How many of the prompt's first tokens are computed together, in passes over all that the
// conversation holds; the others follow one by one, as generated tokens do, each reading what the
// policy selects for it. What the request says, else all of them, unless reading everything would
// take longer than the steps.
std::int64_t PrefilledTokens(const Conversation& conversation, const TurnRequest& request);

absl::StatusOr<TurnResult> Generate(Conversation& conversation, const Tokenizer& tokenizer,
                                    const TurnRequest& request, const TurnObserver& observer,
                                    const StopSignal& stop);

}  // namespace cairn::compute
