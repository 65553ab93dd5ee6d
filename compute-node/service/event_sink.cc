#include "compute-node/service/event_sink.h"

#include <utility>

#include <google/protobuf/util/time_util.h>

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

// More often a person would not see it.
constexpr std::chrono::milliseconds kProgressInterval{50};

v1::FinishReason ToReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return v1::FINISH_REASON_END;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kContext:
      return v1::FINISH_REASON_CONTEXT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::TokenLogprob ToProto(const Tokenizer& tokenizer, const TokenLogProbability& token) {
  v1::TokenLogprob out;
  out.set_id(token.id);
  out.set_text(tokenizer.DecodePiece(token.id, /*render_special=*/true));
  out.set_logprob(token.value);
  out.set_special(!tokenizer.MarkerName(token.id).empty());
  return out;
}

google::protobuf::Duration ToDuration(std::chrono::nanoseconds time) {
  return google::protobuf::util::TimeUtil::NanosecondsToDuration(time.count());
}

}  // namespace

void EventSink::SendStarted(const Conversation& conversation, std::int64_t prompt_token_count) {
  if (std::exchange(started_, true)) return;
  v1::GenerateEvent event;
  v1::Started& started = *event.mutable_started();
  started.set_conversation_id(conversation.id().value());
  started.set_conversation_uid(conversation.uid());
  started.set_reused_token_count(conversation.token_count());
  started.set_policy(conversation.policy_choice().name);
  started.set_prompt_token_count(prompt_token_count);
  Send(std::move(event));
}

bool EventSink::IsTimeForProgress(bool last) {
  const Clock::time_point now = Clock::now();
  if (!last && now < next_progress_) return false;
  next_progress_ = now + kProgressInterval;
  return true;
}

void EventSink::SendPrefilled(std::int64_t done_count, std::int64_t prompt_token_count) {
  if (!IsTimeForProgress(done_count == prompt_token_count)) return;
  v1::GenerateEvent event;
  event.mutable_prefill()->set_done_token_count(done_count);
  event.mutable_prefill()->set_prompt_token_count(prompt_token_count);
  Send(std::move(event));
}

void EventSink::SendRecomputing(std::int64_t done_count, std::int64_t token_count,
                                const std::string& reason) {
  const bool told =
      done_count == 0 ? !reason.empty() : IsTimeForProgress(done_count == token_count);
  if (!told) return;
  v1::GenerateEvent event;
  event.mutable_recomputing()->set_done_token_count(done_count);
  event.mutable_recomputing()->set_token_count(token_count);
  event.mutable_recomputing()->set_reason(reason);
  Send(std::move(event));
}

void EventSink::SendToken(std::int32_t id, std::string_view text, const LogProbabilities* likely) {
  ++shown_token_count_;
  if (first_token_time_.count() == 0) first_token_time_ = Clock::now() - start_;
  v1::GenerateEvent event;
  v1::Token& token = *event.mutable_token();
  token.set_id(id);
  token.set_text(std::string(text));
  if (likely != nullptr) {
    *token.mutable_logprob() = ToProto(tokenizer_, likely->chosen);
    for (const TokenLogProbability& top : likely->top) {
      *token.add_top_logprobs() = ToProto(tokenizer_, top);
    }
  }
  Send(std::move(event));
}

void EventSink::SendFinished(const Conversation& conversation, const TurnResult& result,
                             v1::Finished finished) {
  finished.set_reason(ToReason(result.reason));
  finished.set_generated_token_count(result.generated_count);
  finished.set_conversation_token_count(conversation.token_count());
  *finished.mutable_prefill_time() = ToDuration(result.prefill_time);
  *finished.mutable_decode_time() = ToDuration(result.decode_time);
  *finished.mutable_open_time() = ToDuration(conversation.open_time());
  *finished.mutable_index_time() = ToDuration(conversation.index_time());
  const FetchTimes fetches = conversation.fetch_times();
  *finished.mutable_io_time() = ToDuration(fetches.io_time);
  *finished.mutable_exposed_io_time() = ToDuration(fetches.exposed_time);
  finished.set_kv_read_bytes(fetches.read_bytes);
  finished.set_reconnect_count(conversation.reconnect_count());
  *finished.mutable_queue_time() = ToDuration(queue_time_);
  *finished.mutable_first_token_time() = ToDuration(first_token_time_);
  v1::GenerateEvent event;
  *event.mutable_finished() = std::move(finished);
  Send(std::move(event));
}

void EventSink::Send(v1::GenerateEvent event) {
  const absl::Status pushed = queue_.Push(std::move(event), stop_);
  if (pushed.ok() || !stop_.Check().ok()) return;
  slow_client_ = pushed;
  stop_.Cancel();
}

}  // namespace cairn::compute
