#include "compute-node/kv_client/replay_buffer.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

ChangingOperation StateOf(std::int64_t bytes) {
  return PutPolicyState{1, std::string(static_cast<std::size_t>(bytes), 's')};
}

class ReplayBufferTest : public testing::Test {
 protected:
  ReplayBuffer buffer_{1000, OpSeq(10)};
};

TEST_F(ReplayBufferTest, NumbersGoOnWithoutGapsKeptOrNot) {
  EXPECT_EQ(buffer_.Keep(StateOf(1)), OpSeq(11));
  EXPECT_EQ(buffer_.Skip(), OpSeq(12));
  EXPECT_EQ(buffer_.Keep(StateOf(1)), OpSeq(13));
  EXPECT_EQ(buffer_.last(), OpSeq(13));
}

TEST_F(ReplayBufferTest, CoveredOperationsLeaveAndGiveTheirBytesBack) {
  for (int i = 0; i < 4; ++i) buffer_.Keep(StateOf(50));
  const std::int64_t bytes = buffer_.bytes();
  EXPECT_EQ(bytes, 4 * OperationBytes(StateOf(50)));
  buffer_.DropCovered(OpSeq(12));
  EXPECT_EQ(buffer_.bytes(), bytes / 2);
  EXPECT_EQ(buffer_.NextBehind(OpSeq(0))->op_seq, OpSeq(13));
  buffer_.DropCovered(OpSeq(14));
  EXPECT_EQ(buffer_.bytes(), 0);
  EXPECT_FALSE(buffer_.NextBehind(OpSeq(0)).has_value());
  EXPECT_EQ(buffer_.last(), OpSeq(14));
}

TEST_F(ReplayBufferTest, OperationsComeInOrderWithTheirContent) {
  for (int i = 1; i <= 3; ++i) buffer_.Keep(StateOf(i));
  OpSeq done(11);
  for (int i = 2; i <= 3; ++i) {
    const auto kept = buffer_.NextBehind(done);
    ASSERT_TRUE(kept.has_value());
    EXPECT_EQ(kept->op_seq, OpSeq(10 + i));
    EXPECT_EQ(std::get<PutPolicyState>(kept->operation).state.size(), static_cast<unsigned>(i));
    done = kept->op_seq;
  }
  EXPECT_FALSE(buffer_.NextBehind(done).has_value());
}

TEST_F(ReplayBufferTest, OperationThatDoesNotFitIsRefusedWithTheNumbers) {
  buffer_.Keep(StateOf(800));
  const absl::Status status = buffer_.CheckRoom(300);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(Message(status).find("checkpoint"), std::string::npos);
  EXPECT_TRUE(buffer_.CheckRoom(100).ok());
}

TEST_F(ReplayBufferTest, NothingCanBeReplayedBehindAnOperationThatWasNotKept) {
  buffer_.Keep(StateOf(1));
  buffer_.Skip();  // 12
  buffer_.Keep(StateOf(1));
  EXPECT_FALSE(buffer_.CanReplayBehind(OpSeq(10)));
  EXPECT_FALSE(buffer_.CanReplayBehind(OpSeq(11)));
  EXPECT_TRUE(buffer_.CanReplayBehind(OpSeq(12)));
  EXPECT_TRUE(buffer_.CanReplayBehind(OpSeq(13)));
}

TEST_F(ReplayBufferTest, ForgottenOperationsCannotBeReplayed) {
  buffer_.Keep(StateOf(1));
  buffer_.Keep(StateOf(1));
  buffer_.Forget();
  EXPECT_EQ(buffer_.bytes(), 0);
  EXPECT_FALSE(buffer_.CanReplayBehind(OpSeq(11)));
  EXPECT_TRUE(buffer_.CanReplayBehind(OpSeq(12)));
  EXPECT_EQ(buffer_.last(), OpSeq(12));
}

TEST_F(ReplayBufferTest, ResetStartsAnewBehindTheCheckpoint) {
  buffer_.Keep(StateOf(1));
  buffer_.Skip();
  buffer_.Reset(OpSeq(10));
  EXPECT_TRUE(buffer_.CanReplayBehind(OpSeq(10)));
  EXPECT_EQ(buffer_.Keep(StateOf(1)), OpSeq(11));
}

}  // namespace
}  // namespace cairn::compute
