#include "compute-node/http/stream_comments.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

v1::GenerateEvent Started(std::int64_t prompt_token_count) {
  v1::GenerateEvent event;
  event.mutable_started()->set_prompt_token_count(prompt_token_count);
  return event;
}

v1::GenerateEvent Prefill(std::int64_t done, std::int64_t prompt_token_count) {
  v1::GenerateEvent event;
  event.mutable_prefill()->set_done_token_count(done);
  event.mutable_prefill()->set_prompt_token_count(prompt_token_count);
  return event;
}

TEST(StreamCommentsTest, ACommentSaysWhatIsWaitedFor) {
  StreamComments comments((StreamComments::Clock::time_point()));
  EXPECT_EQ(comments.Text(absl::OkStatus()), ": waiting to begin\n\n");
  comments.Note(Started(5000));
  EXPECT_EQ(comments.Text(absl::OkStatus()), ": 0 of 5000 prompt tokens\n\n");
  comments.Note(Prefill(1200, 5000));
  EXPECT_EQ(comments.Text(absl::OkStatus()), ": 1200 of 5000 prompt tokens\n\n");
  // Whatever it was doing.
  EXPECT_EQ(comments.Text(Unavailable("x")), ": waiting for cairn-kv-node\n\n");
  v1::GenerateEvent token;
  token.mutable_token()->set_text("a");
  comments.Note(token);
  EXPECT_EQ(comments.Text(absl::OkStatus()), ": generating\n\n");
}

TEST(StreamCommentsTest, OneIsDueWhenNothingWasWrittenForAWhile) {
  const StreamComments::Clock::time_point start;
  StreamComments comments(start);
  EXPECT_EQ(comments.due(), start + kStreamSilenceMax);
  comments.NoteWritten(start + std::chrono::seconds(1));
  EXPECT_EQ(comments.due(), start + std::chrono::seconds(1) + kStreamSilenceMax);
}

}  // namespace
}  // namespace cairn::compute
