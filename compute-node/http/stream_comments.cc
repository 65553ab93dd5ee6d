#include "compute-node/http/stream_comments.h"

namespace cairn::compute {

void StreamComments::Note(const v1::GenerateEvent& event) {
  if (event.has_started()) {
    started_ = true;
    progress_.set_prompt_token_count(event.started().prompt_token_count());
  }
  if (event.has_prefill()) progress_ = event.prefill();
  if (event.has_token()) has_tokens_ = true;
}

std::string StreamComments::Text(const absl::Status& kv_status) const {
  if (!kv_status.ok()) return ": waiting for cairn-kv-node\n\n";
  if (!started_) return ": waiting to begin\n\n";
  if (has_tokens_) return ": generating\n\n";
  return fmt::format(": {} of {} prompt tokens\n\n", progress_.done_token_count(),
                     progress_.prompt_token_count());
}

}  // namespace cairn::compute
