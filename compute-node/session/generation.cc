#include "compute-node/session/generation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "compute-node/session/stop_text.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

// After a generation was stopped: for the step that brings its last token into the conversation,
// and the checkpoint behind it.
constexpr std::chrono::seconds kLastWaitMax{4};

std::vector<std::string> StopTexts(const TurnRequest& request) {
  std::vector<std::string> texts = request.stop;
  texts.push_back(request.end_text);
  return texts;
}

// Whether the prompt's last token is computed by itself.
bool StepsLast(const Conversation& conversation, const TurnRequest& request) {
  return request.prompt_end != PromptEnd::kTogether && conversation.policy_choice().selects();
}

// One turn in progress.
class Turn {
 public:
  Turn(Conversation& conversation, const Tokenizer& tokenizer, const TurnRequest& request,
       const TurnObserver& observer, const StopSignal& stop, Sampler sampler)
      : conversation_(conversation),
        tokenizer_(tokenizer),
        request_(request),
        observer_(observer),
        stop_(stop),
        sampler_(std::move(sampler)),
        decoder_(tokenizer),
        stop_text_(StopTexts(request)),
        logits_(static_cast<std::size_t>(conversation.vocab_size())) {}

  absl::StatusOr<TurnResult> Run();

 private:
  // What ends the waits behind a stop.
  StopSignal& LastWait();
  // Makes durable what was shown, also after a stop, if the KV node answers.
  absl::Status Save();
  absl::Status Prefill();
  // Computes the prompt's tokens from `first` to `end` one by one.
  absl::Status StepThrough(std::size_t first, std::size_t end, std::span<float> last_logits);
  absl::Status Decode();
  // Why the token just chosen is the last one, if it is.
  std::optional<FinishReason> EndAfter(std::int32_t token, std::string& text);
  // What may be shown now that the token was chosen.
  std::string Show(std::int32_t token);
  FinishReason EndOfMatch() const;
  absl::Status Feed(std::int32_t token, bool last);

  Conversation& conversation_;
  const Tokenizer& tokenizer_;
  const TurnRequest& request_;
  const TurnObserver& observer_;
  const StopSignal& stop_;
  Sampler sampler_;
  StreamingDecoder decoder_;
  StopText stop_text_;
  std::vector<float> logits_;
  TurnResult result_;
  std::optional<StopSignal> last_wait_;
};

absl::StatusOr<TurnResult> Turn::Run() {
  CAIRN_RETURN_IF_ERROR(Prefill());
  const absl::Status status = Decode();
  // The model's file was changed, or stored entries are damaged: what was computed until then is
  // right.
  if (absl::IsFailedPrecondition(status) || absl::IsDataLoss(status)) Save().IgnoreError();
  if (!status.ok() && !IsStop(status)) return status;
  conversation_.set_random_state(sampler_.SaveState());
  CAIRN_RETURN_IF_ERROR(Save());
  if (!status.ok()) return status;
  return result_;
}

StopSignal& Turn::LastWait() {
  if (!last_wait_.has_value()) last_wait_.emplace(Clock::now() + kLastWaitMax);
  return *last_wait_;
}

absl::Status Turn::Save() {
  absl::Status saved = conversation_.Checkpoint(stop_);
  if (!IsStop(saved)) return saved;
  absl::Status last = conversation_.Checkpoint(LastWait());
  return IsStop(last) ? saved : last;  // why the turn was stopped, not that the last wait was
}

absl::Status Turn::Prefill() {
  const Clock::time_point start = Clock::now();
  conversation_.set_random_state(sampler_.SaveState());
  const std::span<const std::int32_t> prompt = request_.prompt;
  const std::size_t together = static_cast<std::size_t>(PrefilledTokens(conversation_, request_));
  const std::span<float> last_logits =
      request_.tokens_max > 0 ? std::span<float>(logits_) : std::span<float>();
  const bool alone = StepsLast(conversation_, request_);
  const std::size_t before = prompt.size() - (alone ? 1 : 0);
  const bool seals = alone && request_.prompt_end == PromptEnd::kSealed;
  if (together > 0) {
    CAIRN_RETURN_IF_ERROR(conversation_.Prefill(
        prompt.first(together), together == prompt.size() ? last_logits : std::span<float>(), stop_,
        observer_.prefill,
        seals && together == before ? CheckpointEnd::kSealed : CheckpointEnd::kOpen));
  }
  absl::Status stepped = StepThrough(together, before, last_logits);
  if (stepped.ok() && seals) stepped = conversation_.Seal(stop_);
  if (stepped.ok()) stepped = StepThrough(before, prompt.size(), last_logits);
  if (IsStop(stepped)) CAIRN_RETURN_IF_ERROR(Save());
  result_.prefill_time = Clock::now() - start;
  return stepped;
}

absl::Status Turn::StepThrough(std::size_t first, std::size_t end, std::span<float> last_logits) {
  const std::vector<std::int32_t>& prompt = request_.prompt;
  for (std::size_t i = first; i < end; ++i) {
    CAIRN_RETURN_IF_ERROR(stop_.Check());
    const bool last = i + 1 == prompt.size();
    CAIRN_RETURN_IF_ERROR(
        conversation_.Step(prompt[i], last ? last_logits : std::span<float>(), stop_));
    if (observer_.prefill) observer_.prefill(static_cast<std::int64_t>(i) + 1);
  }
  return absl::OkStatus();
}

absl::Status Turn::Decode() {
  Clock::time_point first_token;
  while (result_.generated_count < request_.tokens_max) {
    if (conversation_.token_count() >= conversation_.context_tokens_max()) {
      result_.reason = FinishReason::kContext;
      return absl::OkStatus();
    }
    CAIRN_RETURN_IF_ERROR(stop_.Check());
    CAIRN_RETURN_IF_ERROR(conversation_.AwaitStore(stop_));
    CAIRN_ASSIGN_OR_RETURN(const std::int32_t token, sampler_.Sample(logits_));
    conversation_.set_random_state(sampler_.SaveState());
    ++result_.generated_count;
    std::optional<LogProbabilities> likely;
    if (request_.log_probabilities) {
      likely = ComputeLogProbabilities(logits_, token, request_.top_log_probability_count);
    }
    std::string text;
    const std::optional<FinishReason> end = EndAfter(token, text);
    if (observer_.token) observer_.token(token, text, likely ? &*likely : nullptr);
    const Clock::time_point now = Clock::now();
    if (result_.generated_count == 1) first_token = now;
    result_.decode_time = now - first_token;
    CAIRN_RETURN_IF_ERROR(Feed(token, end.has_value()));
    if (end.has_value()) {
      result_.reason = *end;
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

std::optional<FinishReason> Turn::EndAfter(std::int32_t token, std::string& text) {
  const bool stops = std::find(request_.stop_tokens.begin(), request_.stop_tokens.end(), token) !=
                     request_.stop_tokens.end();
  if (!stops) text = Show(token);
  if (stop_text_.matched()) return EndOfMatch();
  std::optional<FinishReason> end;
  if (stops) {
    end = FinishReason::kStop;
  } else if (tokenizer_.IsEndOfGeneration(token) && !request_.ignore_end) {
    end = FinishReason::kEnd;
  } else if (result_.generated_count >= request_.tokens_max) {
    end = FinishReason::kLength;
  } else if (conversation_.token_count() + 1 >= conversation_.context_tokens_max()) {
    end = FinishReason::kContext;
  }
  if (end.has_value()) {
    text += stop_text_.Append(decoder_.Finish());
    text += stop_text_.Finish();
    if (stop_text_.matched()) end = EndOfMatch();
  }
  return end;
}

std::string Turn::Show(std::int32_t token) {
  const std::string text = decoder_.Append(token);
  const std::string name = tokenizer_.MarkerName(token);
  return name.empty() ? stop_text_.Append(text) : stop_text_.AppendNamed(name, text);
}

FinishReason Turn::EndOfMatch() const {
  return stop_text_.match() == request_.end_text ? FinishReason::kEnd : FinishReason::kStop;
}

absl::Status Turn::Feed(std::int32_t token, bool last) {
  const std::span<float> logits = last ? std::span<float>() : std::span<float>(logits_);
  absl::Status status = conversation_.Step(token, logits, stop_);
  if (!IsStop(status)) return status;
  // The token was shown: the conversation must hold it, if the KV node answers.
  absl::Status kept = conversation_.Step(token, {}, LastWait());
  return kept.ok() || IsStop(kept) ? status : kept;
}

}  // namespace

std::int64_t PrefilledTokens(const Conversation& conversation, const TurnRequest& request) {
  const std::int64_t prompt_count =
      std::ssize(request.prompt) - (StepsLast(conversation, request) ? 1 : 0);
  if (request.prefill_tokens_max > 0) return std::min(prompt_count, request.prefill_tokens_max);
  const PolicyTraits traits = conversation.policy().traits();
  // Such a policy reads as much for one token as for many.
  if (traits.selects_without_queries || traits.learns_from_prompts) return prompt_count;
  // A pass of many tokens attends everything, so it reads the whole conversation once; a step reads
  // what is selected for its token. A short question behind a long text reads less in steps.
  const std::int64_t held_count = conversation.token_count();
  const std::int64_t selected = SelectedTokens(conversation.policy_choice().selection, held_count);
  return prompt_count * selected < held_count ? 0 : prompt_count;
}

absl::StatusOr<TurnResult> Generate(Conversation& conversation, const Tokenizer& tokenizer,
                                    const TurnRequest& request, const TurnObserver& observer,
                                    const StopSignal& stop) {
  if (request.prompt.empty()) {
    return InvalidArgument("the prompt has no tokens: give at least one");
  }
  CAIRN_RETURN_IF_ERROR(conversation.CheckRoom(std::ssize(request.prompt), request.tokens_max > 0));
  CAIRN_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(request.sampling));
  if (request.keep_random_state && !conversation.stored_random_state().empty()) {
    CAIRN_RETURN_IF_ERROR(sampler.RestoreState(conversation.stored_random_state()));
  }
  sampler.Observe(request.history);
  sampler.Observe(request.prompt);
  Turn turn(conversation, tokenizer, request, observer, stop, std::move(sampler));
  return turn.Run();
}

}  // namespace cairn::compute
