// The data path: order, refusals, back-pressure, ends.
#include <thread>

#include <gtest/gtest.h>

#include "kv-node/service/channel_stream.h"
#include "tests/unit/service/fake_node.h"

namespace cairn::kv {
namespace {

using fake::AppendRequest;
using fake::FakeNode;
using fake::FetchRequest;
using fake::RawClient;
using fake::RawStream;

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() { session_ = client_.CreateAndOpen(&epoch_); }

  FakeNode node_;
  RawClient client_{node_.socket_path()};
  std::int64_t epoch_ = 0;
  std::int64_t session_ = 0;
};

TEST_F(ChannelTest, FetchReturnsWhatWasAppended) {
  RawStream stream(&client_, session_, epoch_);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream.Write(AppendRequest(i + 1, i)));
  ASSERT_TRUE(stream.Write(FetchRequest(9, 3)));
  v1::ChannelReply reply;
  ASSERT_TRUE(stream.Read(&reply));
  EXPECT_EQ(reply.request_id(), 9);
  EXPECT_EQ(reply.boot_token().size(), 16U);
  ASSERT_EQ(reply.fetch().clusters_size(), 1);
  EXPECT_EQ(reply.fetch().clusters(0).outcome(), v1::FETCH_OUTCOME_FOUND);
  ASSERT_EQ(reply.fetch().clusters(0).spans_size(), 1);
  EXPECT_EQ(reply.fetch().clusters(0).spans(0).entries(), "000000000000000100000002");
}

TEST_F(ChannelTest, LargeFetchComesWhole) {
  RawStream stream(&client_, session_, epoch_);
  const std::string entries(4 << 20, 'e');
  v1::ChannelRequest append = AppendRequest(1, 0);
  append.mutable_append()->mutable_clusters(0)->set_entries(entries);
  ASSERT_TRUE(stream.Write(append));
  ASSERT_TRUE(stream.Write(FetchRequest(1, 1)));
  v1::ChannelReply reply;
  ASSERT_TRUE(stream.Read(&reply));
  ASSERT_EQ(reply.fetch().clusters_size(), 1);
  EXPECT_TRUE(reply.fetch().clusters(0).spans(0).entries() == entries);
}

TEST_F(ChannelTest, StreamThatDoesNotBeginWithHelloEnds) {
  const auto context = client_.Context();
  const auto stream = client_.stub().Channel(context.get());
  stream->Write(AppendRequest(1, 0));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ChannelTest, SecondHelloEndsTheStream) {
  RawStream stream(&client_, session_, epoch_);
  v1::ChannelRequest hello;
  hello.mutable_hello()->set_session_id(session_);
  hello.mutable_hello()->set_epoch(epoch_);
  stream.Write(hello);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ChannelTest, HelloOfAnUnknownSessionOrAnOldEpochEndsTheStream) {
  const auto hello = [this](std::int64_t session, std::int64_t epoch) {
    const auto context = client_.Context();
    const auto stream = client_.stub().Channel(context.get());
    v1::ChannelRequest request;
    request.mutable_hello()->set_session_id(session);
    request.mutable_hello()->set_epoch(epoch);
    stream->Write(request);
    return stream->Finish().error_code();
  };
  EXPECT_EQ(hello(99, 1), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(hello(session_, epoch_ + 1), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(hello(0, 1), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ChannelTest, BadOperationRefusesThoseBehindUntilItIsSentAgain) {
  RawStream stream(&client_, session_, epoch_);
  v1::ChannelRequest bad = AppendRequest(1, 0);
  bad.mutable_append()->set_layer(-3);
  ASSERT_TRUE(stream.Write(bad));
  ASSERT_TRUE(stream.Write(AppendRequest(2, 1)));
  v1::ChannelReply reply;
  ASSERT_TRUE(stream.Read(&reply));
  EXPECT_EQ(reply.op_seq(), 1);
  EXPECT_EQ(reply.failure().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(reply.failure().message().find("layer is -3"), std::string::npos);
  ASSERT_TRUE(stream.Read(&reply));
  EXPECT_EQ(reply.op_seq(), 2);
  EXPECT_EQ(reply.failure().code(), grpc::StatusCode::FAILED_PRECONDITION);

  ASSERT_TRUE(stream.Write(AppendRequest(1, 0)));
  ASSERT_TRUE(stream.Write(AppendRequest(2, 1)));
  ASSERT_TRUE(stream.Write(FetchRequest(1, 2)));
  ASSERT_TRUE(stream.Read(&reply));
  ASSERT_TRUE(reply.has_fetch()) << reply.ShortDebugString();
  EXPECT_EQ(reply.fetch().clusters(0).spans(0).entries(), "0000000000000001");
}

TEST_F(ChannelTest, DaemonStopsReadingWhileTheEngineHasNoRoom) {
  constexpr int kCount = 500;
  RawStream stream(&client_, session_, epoch_);
  node_.engine().HoldOperations();
  std::thread writer([&stream] {
    for (int i = 0; i < kCount; ++i) ASSERT_TRUE(stream.Write(AppendRequest(i + 1, i)));
    ASSERT_TRUE(stream.Write(FetchRequest(1, kCount)));
  });
  node_.engine().WaitForQueuedCount(kChannelQueueMax);
  node_.engine().ReleaseOperations();
  v1::ChannelReply reply;
  ASSERT_TRUE(stream.Read(&reply));
  writer.join();
  ASSERT_TRUE(reply.has_fetch()) << reply.ShortDebugString();
  EXPECT_EQ(reply.fetch().clusters(0).spans(0).entry_count(), kCount);
  EXPECT_LE(node_.engine().queued_count_max(), kChannelQueueMax);
}

TEST_F(ChannelTest, MoreReadsThanMayBeInFlightAreAllAnsweredInTurn) {
  constexpr int kCount = 100;
  RawStream stream(&client_, session_, epoch_);
  node_.engine().HoldOperations();
  std::thread writer([&stream] {
    for (int i = 0; i < kCount; ++i) ASSERT_TRUE(stream.Write(FetchRequest(i + 1, 0)));
  });
  node_.engine().WaitForQueuedCount(kFetchesInFlightMax);
  node_.engine().ReleaseOperations();
  for (int i = 0; i < kCount; ++i) {
    v1::ChannelReply reply;
    ASSERT_TRUE(stream.Read(&reply));
    EXPECT_EQ(reply.request_id(), i + 1);
  }
  writer.join();
  EXPECT_LE(node_.engine().queued_count_max(), kFetchesInFlightMax);
}

TEST_F(ChannelTest, RequestIdInUseEndsTheStream) {
  RawStream stream(&client_, session_, epoch_);
  node_.engine().HoldOperations();
  stream.Write(FetchRequest(1, 0));
  stream.Write(FetchRequest(1, 0));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("request_id 1"), std::string::npos);
}

TEST_F(ChannelTest, MessageOverTheLimitSaysSo) {
  for (const std::int64_t excess_bytes : {std::int64_t{1}, std::int64_t{4} << 20}) {
    RawStream stream(&client_, session_, epoch_);
    v1::ChannelRequest request = AppendRequest(1, 0);
    request.mutable_append()->mutable_clusters(0)->set_entries(
        std::string(static_cast<std::size_t>(kMessageBytesMax + excess_bytes), 'x'));
    stream.Write(request);
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_NE(status.error_message().find("message"), std::string::npos) << status.error_message();
    v1::OpenSessionRequest open;
    open.set_session_id(session_);
    v1::OpenSessionResponse opened;
    ASSERT_TRUE(client_.stub().OpenSession(client_.Context().get(), open, &opened).ok());
    epoch_ = opened.attachment().epoch();
  }
}

TEST_F(ChannelTest, ClientThatVanishesIsDetached) {
  {
    RawStream stream(&client_, session_, epoch_);
    ASSERT_TRUE(stream.Write(AppendRequest(1, 0)));
    stream.context().TryCancel();
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  node_.engine().WaitForDetachCount(1);
}

TEST_F(ChannelTest, ClientThatWillSendNoMoreStillGetsItsAnswers) {
  RawStream stream(&client_, session_, epoch_);
  node_.engine().HoldOperations();
  ASSERT_TRUE(stream.Write(AppendRequest(1, 0)));
  v1::ChannelRequest checkpoint;
  checkpoint.set_op_seq(2);
  checkpoint.mutable_checkpoint()->set_token_count(1);
  checkpoint.mutable_checkpoint()->add_token_ids(42);
  ASSERT_TRUE(stream.Write(checkpoint));
  ASSERT_TRUE(stream.Write(FetchRequest(1, 2)));
  stream.WritesDone();
  node_.engine().ReleaseOperations();
  v1::ChannelReply reply;
  ASSERT_TRUE(stream.Read(&reply));
  EXPECT_TRUE(reply.has_checkpointed());
  ASSERT_TRUE(stream.Read(&reply));
  EXPECT_TRUE(reply.has_fetch());
  EXPECT_TRUE(stream.Finish().ok());
  node_.engine().WaitForDetachCount(1);
}

TEST_F(ChannelTest, ACheckpointThatWasAppliedBeforeKeepsNoStreamOpen) {
  RawStream stream(&client_, session_, epoch_);
  v1::ChannelRequest checkpoint;
  checkpoint.set_op_seq(1);
  checkpoint.mutable_checkpoint()->set_token_count(1);
  checkpoint.mutable_checkpoint()->add_token_ids(42);
  ASSERT_TRUE(stream.Write(checkpoint));
  v1::ChannelReply reply;
  ASSERT_TRUE(stream.Read(&reply));
  EXPECT_TRUE(reply.has_checkpointed());
  ASSERT_TRUE(stream.Write(checkpoint));
  stream.WritesDone();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChannelTest, NewerOwnerEndsTheStream) {
  RawStream stream(&client_, session_, epoch_);
  v1::OpenSessionRequest request;
  request.set_session_id(session_);
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(client_.stub().OpenSession(client_.Context().get(), request, &opened).ok());
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ChannelTest, StopEndsStreamsWithUnavailable) {
  RawStream stream(&client_, session_, epoch_);
  node_.Stop();
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace cairn::kv
