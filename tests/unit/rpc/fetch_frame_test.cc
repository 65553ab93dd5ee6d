#include "common/rpc/fetch_frame.h"

#include <vector>

#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include "common/rpc/kv_codec.h"
#include "tests/unit/rpc/fetch_message.h"
#include "tests/unit/rpc/random_values.h"

namespace cairn::rpc {
namespace {

class FetchFrameTest : public test::SeededTest {};

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

TEST_F(FetchFrameTest, FrameIsWhatProtobufWouldRead) {
  test::RandomValues random(seed_);
  for (int round = 0; round < 200; ++round) {
    const FetchReply reply = random.Fetched();
    pb::ChannelReply expected;
    expected.set_boot_token("boot");
    expected.set_request_id(round + 1);
    test::SetFetch(reply, &expected);
    pb::ChannelReply framed;
    ASSERT_TRUE(framed.ParseFromString(
        Flatten(FrameFetchReply("boot", RequestId(round + 1), reply, false))));
    EXPECT_EQ(framed.SerializeAsString(), expected.SerializeAsString());
  }
}

TEST_F(FetchFrameTest, LentBytesLiveUntilTheBufferGoes) {
  auto bytes = std::make_shared<const std::string>(kLendBytesMin, 'x');
  const std::weak_ptr<const std::string> watch = bytes;
  FetchReply reply;
  reply.clusters.emplace_back().cluster = {0, ClusterId(1)};
  Span& span = reply.clusters[0].spans.emplace_back();
  span.entry_count = 1;
  span.bytes = std::as_bytes(std::span<const char>(bytes->data(), bytes->size()));
  span.owner = std::move(bytes);
  grpc::ByteBuffer buffer = FrameFetchReply("boot", RequestId(1), reply, /*uses_arena=*/false);
  reply = {};
  ASSERT_FALSE(watch.expired());
  EXPECT_NE(Flatten(buffer).find(*watch.lock()), std::string::npos);
  buffer.Clear();
  EXPECT_TRUE(watch.expired());
}

TEST_F(FetchFrameTest, SpansOfTheArenaGoAsRangesOnlyToThoseWhoReadThere) {
  const std::string bytes(kLendBytesMin, 'x');
  FetchReply reply;
  reply.clusters.emplace_back().cluster = {0, ClusterId(1)};
  for (const std::int64_t granule : {3, 0}) {
    Span& span = reply.clusters[0].spans.emplace_back();
    span.entry_count = 1;
    span.bytes = std::as_bytes(std::span<const char>(bytes.data(), bytes.size()));
    span.arena = {static_cast<std::int32_t>(granule), granule * 100, granule * 10, nullptr};
  }
  for (const bool uses_arena : {true, false}) {
    pb::ChannelReply framed;
    ASSERT_TRUE(
        framed.ParseFromString(Flatten(FrameFetchReply("boot", RequestId(1), reply, uses_arena))));
    EXPECT_EQ(HasArenaSpans(framed), uses_arena);
    const pb::Span& first = framed.fetch().clusters(0).spans(0);
    EXPECT_EQ(first.has_arena(), uses_arena);
    EXPECT_EQ(first.entries(), uses_arena ? "" : bytes);
    EXPECT_EQ(framed.fetch().clusters(0).spans(1).entries(), bytes);
    if (!uses_arena) continue;
    EXPECT_EQ(first.arena().granule_id(), 3);
    EXPECT_EQ(first.arena().offset_bytes(), 300);
    EXPECT_EQ(first.arena().size_bytes(), kLendBytesMin);
    EXPECT_EQ(first.arena().generation(), 30);
  }
}

}  // namespace
}  // namespace cairn::rpc
