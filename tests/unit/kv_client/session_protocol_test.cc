#include "compute-node/kv_client/session_protocol.h"

#include <gtest/gtest.h>

#include "common/rpc/kv_codec.h"
#include "compute-node/kv_client/session_owner.h"

namespace cairn::compute {
namespace {

using State = SessionProtocol::State;

Attachment At(OpSeq op_seq, std::int64_t epoch) {
  Attachment attachment;
  attachment.session_id = SessionId(7);
  attachment.uid = std::string(kUidBytes, 'u');
  attachment.epoch = Epoch(epoch);
  attachment.op_seq = op_seq;
  return attachment;
}

class SessionProtocolTest : public testing::Test {
 protected:
  OpSeq Send(const ChangingOperation& operation) {
    absl::StatusOr<OpSeq> op_seq =
        protocol_.Number(SessionProtocol::Describe(operation, protocol_.keeps()));
    EXPECT_TRUE(op_seq.ok()) << op_seq.status();
    return op_seq.value_or(OpSeq());
  }
  OpSeq SendState() { return Send(PutPolicyState{1, "state"}); }
  OpSeq SendCheckpoint() { return Send(Checkpoint{}); }

  void LoseStream() {
    protocol_.OnStreamEnd();
    EXPECT_TRUE(protocol_.MayRecover(Unavailable("gone")));
  }

  // What goes to the new stream: numbers of operations, and of reads with a minus.
  std::vector<std::int64_t> Resent() {
    std::vector<std::int64_t> out;
    ResendCursor cursor{protocol_.attachment().op_seq, RequestId()};
    while (const auto message = protocol_.NextToResend(cursor)) {
      const bool is_read = rpc::KindOf(*message) == rpc::OperationKind::kRead;
      out.push_back(is_read ? -message->request_id() : message->op_seq());
    }
    return out;
  }

  SessionProtocol protocol_{1000, At(OpSeq(10), 1), std::make_shared<FetchClock>()};
};

TEST_F(SessionProtocolTest, BehindALossGoesWhatNoCheckpointCoversWithReadsWhereTheyWereAsked) {
  SendState();  // 11
  protocol_.Ask(GetTokens{});
  SendState();  // 12
  protocol_.Ask(GetTokens{});
  LoseStream();
  EXPECT_EQ(protocol_.state(), State::kRecovering);
  EXPECT_TRUE(protocol_.OnAttached(At(OpSeq(10), 2)));
  EXPECT_EQ(Resent(), (std::vector<std::int64_t>{11, -1, 12, -2}));
  EXPECT_FALSE(protocol_.OnResent());
  EXPECT_EQ(protocol_.state(), State::kOpen);
  EXPECT_EQ(SendState(), OpSeq(13));
}

TEST_F(SessionProtocolTest, ACheckpointWhoseReplyWasLostIsDurable) {
  SendState();
  const OpSeq checkpoint = SendCheckpoint();
  SendState();
  LoseStream();
  EXPECT_FALSE(protocol_.CheckpointOutcome().has_value());
  EXPECT_TRUE(protocol_.OnAttached(At(checkpoint, 2)));
  ASSERT_TRUE(protocol_.CheckpointOutcome().has_value());
  EXPECT_TRUE(protocol_.CheckpointOutcome()->ok());
  EXPECT_EQ(protocol_.acknowledged(), checkpoint);
  EXPECT_EQ(Resent(), (std::vector<std::int64_t>{13}));
}

TEST_F(SessionProtocolTest, WhatIsNotKeptIsLostUntilTheCallerGoesOn) {
  protocol_.SetReplayMode(ReplayMode::kNothing);
  SendState();
  std::future<absl::StatusOr<ReadReply>> answer = protocol_.Ask(GetTokens{}).answer;
  LoseStream();
  EXPECT_FALSE(protocol_.OnAttached(At(OpSeq(10), 2)));
  EXPECT_EQ(protocol_.state(), State::kLost);
  EXPECT_TRUE(absl::IsAborted(protocol_.status()));
  EXPECT_TRUE(absl::IsAborted(answer.get().status()));
  protocol_.GoOn(/*has_stream=*/true);
  EXPECT_EQ(protocol_.state(), State::kOpen);
  EXPECT_EQ(SendState(), OpSeq(11));
}

TEST_F(SessionProtocolTest, AFailureStaysUntilItIsDiscardedAndWhatComesLateOfItDoesNotCount) {
  const OpSeq first = SendState();
  const OpSeq second = SendState();
  protocol_.OnFailure(first, ResourceExhausted("flash is full"));
  protocol_.OnFailure(second, FailedPrecondition("it waits for the first"));
  EXPECT_EQ(protocol_.state(), State::kFailed);
  EXPECT_TRUE(absl::IsResourceExhausted(protocol_.status()));
  protocol_.Discard();
  protocol_.OnFailure(second, FailedPrecondition("it waits for the first"));
  EXPECT_EQ(protocol_.state(), State::kRecovering);
  protocol_.OnStreamEnd();
  EXPECT_TRUE(protocol_.MayRecover(FailedPrecondition("another epoch")));
  EXPECT_FALSE(protocol_.OnAttached(At(OpSeq(10), 2)));
  EXPECT_EQ(protocol_.state(), State::kOpen);
  EXPECT_EQ(Resent(), (std::vector<std::int64_t>{}));
  EXPECT_EQ(SendState(), OpSeq(11));
}

TEST_F(SessionProtocolTest, AnotherOwnerEndsIt) {
  protocol_.OnStreamEnd();
  EXPECT_FALSE(protocol_.MayRecover(FailedPrecondition("session 7 was opened by another owner")));
  EXPECT_EQ(protocol_.state(), State::kFailed);
  EXPECT_TRUE(absl::IsAborted(protocol_.status()));
}

TEST_F(SessionProtocolTest, ANodeThatStopsIsLetGoOnceItHasEverything) {
  SendState();
  EXPECT_FALSE(protocol_.OnStopping());
  EXPECT_TRUE(protocol_.wants_checkpoint());
  const OpSeq checkpoint = SendCheckpoint();
  EXPECT_TRUE(protocol_.OnCheckpointed(checkpoint, Checkpointed{}));
  EXPECT_FALSE(protocol_.wants_checkpoint());
  EXPECT_EQ(protocol_.state(), State::kRecovering);
}

TEST(SessionOwnerTest, AttemptsRiseAndBecomeResumesOnceOneWasAnswered) {
  SessionOwner owner({SessionId(7), ""}, "owner");
  const auto first = owner.NextAttempt(OpSeq());
  const auto second = owner.NextAttempt(OpSeq());
  ASSERT_TRUE(std::holds_alternative<OpenRequest>(second));
  EXPECT_LT(std::get<OpenRequest>(first).attempt.number,
            std::get<OpenRequest>(second).attempt.number);
  const absl::Status refused = FailedPrecondition("held");
  EXPECT_EQ(owner.Explain(refused).code(), absl::StatusCode::kFailedPrecondition);
  owner.OnAttached(At(OpSeq(3), 5));
  const auto third = owner.NextAttempt(OpSeq(3));
  ASSERT_TRUE(std::holds_alternative<ResumeRequest>(third));
  EXPECT_EQ(std::get<ResumeRequest>(third).epoch, Epoch(5));
  EXPECT_EQ(std::get<ResumeRequest>(third).op_seq, OpSeq(3));
  EXPECT_TRUE(absl::IsAborted(owner.Explain(refused)));
}

TEST(SessionOwnerTest, WithoutAUidTheStoreThatWasAskedFirstIsTheOnlyOne) {
  SessionOwner owner({SessionId(7), ""}, "owner");
  EXPECT_TRUE(owner.MeetStore("/node", "store-a").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(owner.MeetStore("/node", "store-b")));
  EXPECT_TRUE(owner.MeetStore("/node", "store-a").ok());
}

TEST(SessionOwnerTest, OnceItIsAttachedAnotherStoreIsRefused) {
  SessionOwner owner({SessionId(7), std::string(kUidBytes, 'u')}, "owner");
  // The first one did not have the session, or its answer was lost.
  EXPECT_TRUE(owner.MeetStore("/node", "store-b").ok());
  EXPECT_TRUE(owner.MeetStore("/node", "store-a").ok());
  owner.OnAttached(At(OpSeq(3), 5));
  EXPECT_TRUE(absl::IsFailedPrecondition(owner.MeetStore("/node", "store-b")));
  EXPECT_TRUE(owner.MeetStore("/node", "store-a").ok());
}

}  // namespace
}  // namespace cairn::compute
