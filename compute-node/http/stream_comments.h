// StreamComments is what a stream of server-sent events says while it has nothing else to say:
// comments, lines that begin with a colon, which clients of OpenAI's API skip. They keep
// connections from being given up, and tell a person at a terminal what is waited for.
//
// Threading:  one thread.
#pragma once

#include <chrono>
#include <string>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/status.h"

namespace cairn::compute {

// How long a stream says nothing at most. Until then the answer's status is open.
inline constexpr std::chrono::milliseconds kStreamSilenceMax{2000};

class StreamComments {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StreamComments(Clock::time_point now) : spoken_(now) {}

  // What came from the generation.
  void Note(const v1::GenerateEvent& event);
  // Something was written.
  void NoteWritten(Clock::time_point now) { spoken_ = now; }
  // When the next comment is due.
  Clock::time_point due() const { return spoken_ + kStreamSilenceMax; }
  // `kv_status`: whether the KV node serves.
  std::string Text(const absl::Status& kv_status) const;

 private:
  Clock::time_point spoken_;
  bool started_ = false;
  bool has_tokens_ = false;
  v1::PrefillProgress progress_;
};

}  // namespace cairn::compute
