#include "common/rpc/kv_codec.h"

#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "tests/unit/rpc/fetch_message.h"
#include "tests/unit/rpc/random_values.h"

namespace cairn::rpc {
namespace {

using test::RandomValues;

constexpr int kRounds = 300;

class KvCodecTest : public test::SeededTest {};

// Through bytes, as on a socket.
template <typename Message>
Message Wire(const Message& message) {
  Message out;
  EXPECT_TRUE(out.ParseFromString(message.SerializeAsString()));
  return out;
}

// Values have no operator== where spans lie in them; their messages do, as bytes.
template <typename Value>
std::string BytesOf(const Value& value) {
  pb::ChannelRequest request;
  SetOperation(value, &request);
  return request.SerializeAsString();
}

TEST_F(KvCodecTest, ChangingOperationsSurviveTheRoundTrip) {
  RandomValues random(seed_);
  for (int round = 0; round < kRounds; ++round) {
    const ChangingOperation operation = random.Change();
    pb::ChannelRequest request;
    SetOperation(operation, &request);
    request = Wire(request);
    ASSERT_EQ(KindOf(request), OperationKind::kChanging);
    absl::StatusOr<ChangingOperation> back = TakeChangingOperation(&request);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->index(), operation.index());
    EXPECT_EQ(BytesOf(*back), BytesOf(operation));
    EXPECT_EQ(OperationBytes(*back), OperationBytes(operation));
  }
}

TEST_F(KvCodecTest, ReadsSurviveTheRoundTrip) {
  RandomValues random(seed_);
  for (int round = 0; round < kRounds; ++round) {
    const ReadOperation operation = random.ReadOf();
    pb::ChannelRequest request;
    SetOperation(operation, &request);
    request = Wire(request);
    ASSERT_EQ(KindOf(request), OperationKind::kRead);
    const absl::StatusOr<ReadOperation> back = ReadOperationFromProto(request);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(BytesOf(*back), BytesOf(operation));
  }
}

TEST_F(KvCodecTest, FetchRepliesSurviveTheRoundTrip) {
  RandomValues random(seed_);
  for (int round = 0; round < kRounds; ++round) {
    const FetchReply reply = random.Fetched();
    pb::ChannelReply message;
    test::SetFetch(reply, &message);
    auto wire = std::make_shared<pb::ChannelReply>(Wire(message));
    absl::StatusOr<ReadReply> back = ReadReplyFromProto(wire);
    ASSERT_TRUE(back.ok()) << back.status();
    wire.reset();  // the spans keep it alive
    pb::ChannelReply again;
    test::SetFetch(std::get<FetchReply>(*back), &again);
    EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
  }
}

TEST_F(KvCodecTest, OtherRepliesSurviveTheRoundTrip) {
  RandomValues random(seed_);
  for (int round = 0; round < kRounds; ++round) {
    IndexReply index;
    index.read_bytes = random.Between(0, 100000);
    CarriedReply carried;
    carried.read_bytes = random.Between(0, 100000);
    ClustersReply clusters;
    TokensReply tokens;
    for (std::int64_t i = random.Between(0, 6); i > 0; --i) {
      index.rows.push_back(random.Row());
      CarriedEntries entries = random.Carried();
      entries.brought_positions = entries.positions;
      entries.entries = random.EntriesOf(entries.positions);
      carried.carried.push_back(std::move(entries));
      clusters.clusters.push_back({random.Ref(), random.RandomPositions(0)});
      tokens.token_ids.push_back(static_cast<std::int32_t>(random.Between(-1, 1 << 20)));
    }
    const PolicyStateReply state{3, random.Bytes(50), random.Bytes(8)};
    for (const ReadReply& reply : {ReadReply(index), ReadReply(carried), ReadReply(clusters),
                                   ReadReply(tokens), ReadReply(state)}) {
      pb::ChannelReply message;
      SetReply(reply, &message);
      absl::StatusOr<ReadReply> back =
          ReadReplyFromProto(std::make_shared<pb::ChannelReply>(Wire(message)));
      ASSERT_TRUE(back.ok()) << back.status();
      ASSERT_EQ(back->index(), reply.index());
      pb::ChannelReply again;
      SetReply(*std::move(back), &again);
      EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
    }
  }
}

TEST_F(KvCodecTest, SessionValuesSurviveTheRoundTrip) {
  RandomValues random(seed_);
  for (int round = 0; round < kRounds; ++round) {
    CreateSession create;
    create.layout = random.Layout();
    create.key = random.Key(create.layout.kv_format);
    create.label = "a conversation";
    if (random.Coin()) {
      create.parent_segment_id = SegmentId(random.Between(1, 1000));
      create.parent_token_count = random.Between(1, 5000);
      create.parent = {SessionId(random.Between(1, 1000)), std::string(kUidBytes, 'p')};
    }
    create.uid = std::string(random.Coin() ? kUidBytes : 0, 'u');
    create.lifetime = static_cast<SessionLifetime>(random.Between(1, 3));
    create.creator = "a program";
    absl::StatusOr<CreateSession> created = FromProto(Wire(ToProto(create)));
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_EQ(created->layout, create.layout);
    EXPECT_EQ(created->key, create.key);
    EXPECT_EQ(created->parent_segment_id, create.parent_segment_id);
    EXPECT_EQ(created->parent_token_count, create.parent_token_count);
    EXPECT_EQ(created->label, create.label);
    EXPECT_EQ(created->parent, create.parent);
    EXPECT_EQ(created->uid, create.uid);
    EXPECT_EQ(created->lifetime, create.lifetime);
    EXPECT_EQ(created->creator, create.creator);

    const Supersession supersession{
        {SessionId(random.Between(1, 1000)), create.uid},
        {SessionId(random.Between(1, 1000)), std::string(random.Coin() ? kUidBytes : 0, 'r')}};
    const absl::StatusOr<Supersession> superseded = FromProto(Wire(ToProto(supersession)));
    ASSERT_TRUE(superseded.ok()) << superseded.status();
    EXPECT_EQ(superseded->session, supersession.session);
    EXPECT_EQ(superseded->replacement, supersession.replacement);

    Attachment attachment;
    attachment.session_id = SessionId(7);
    attachment.uid = std::string(kUidBytes, 'u');
    attachment.epoch = Epoch(random.Between(1, 100));
    attachment.token_count = random.Between(0, 100000);
    attachment.op_seq = OpSeq(random.Between(0, 100000));
    attachment.layout = create.layout;
    attachment.key = create.key;
    attachment.next_cluster_ids = {1, 5, random.Between(1, 1000)};
    attachment.segment_id = SegmentId(random.Between(1, 1000));
    attachment.policy_token_count = random.Between(0, 1000);
    pb::Attachment message;
    ToProto(attachment, &message);
    absl::StatusOr<Attachment> attached = FromProto(SessionId(7), Wire(message));
    ASSERT_TRUE(attached.ok()) << attached.status();
    EXPECT_EQ(attached->session_id, attachment.session_id);
    EXPECT_EQ(attached->next_cluster_ids, attachment.next_cluster_ids);
    pb::Attachment again;
    ToProto(*attached, &again);
    EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());

    SessionInfo info;
    info.session_id = SessionId(random.Between(1, 1000));
    info.label = create.label;
    info.create_time_us = random.Between(1, std::int64_t{1} << 50);
    info.checkpoint_time_us = random.Coin() ? 0 : info.create_time_us + 17;
    info.key = create.key;
    info.layout = create.layout;
    info.attached = random.Coin();
    info.uid = create.uid;
    info.lifetime = create.lifetime;
    info.creator = create.creator;
    info.own_flash_bytes = random.Between(0, 1 << 30);
    info.shared_flash_bytes = random.Between(0, 1 << 30);
    pb::SessionInfo info_message;
    ToProto(info, &info_message);
    absl::StatusOr<SessionInfo> info_back = FromProto(Wire(info_message));
    ASSERT_TRUE(info_back.ok()) << info_back.status();
    EXPECT_EQ(info_back->create_time_us, info.create_time_us);
    EXPECT_EQ(info_back->checkpoint_time_us, info.checkpoint_time_us);
    EXPECT_EQ(info_back->attached, info.attached);
    pb::SessionInfo info_again;
    ToProto(*info_back, &info_again);
    EXPECT_EQ(info_again.SerializeAsString(), info_message.SerializeAsString());
  }
}

// Rows on flash have any number.
TEST_F(KvCodecTest, TimesThatNoClockHasAreSaidAndRefused) {
  SessionInfo info;
  info.session_id = SessionId(1);
  info.create_time_us = std::numeric_limits<std::int64_t>::max();
  info.checkpoint_time_us = info.create_time_us;
  pb::SessionInfo message;
  ToProto(info, &message);
  EXPECT_EQ(FromProto(Wire(message)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KvCodecTest, RequestsThatNameASessionSurviveTheRoundTrip) {
  const SessionRef session{SessionId(7), std::string(kUidBytes, 'u')};
  const AttachAttempt attempt{std::string(kUidBytes, 'o'), 3};
  const auto open = FromProto(Wire(ToProto(OpenRequest{session, attempt})));
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->session, session);
  EXPECT_EQ(open->attempt.owner, attempt.owner);
  EXPECT_EQ(open->attempt.number, attempt.number);
  const auto resume =
      FromProto(Wire(ToProto(ResumeRequest{session.id, Epoch(5), attempt, OpSeq(9)})));
  ASSERT_TRUE(resume.ok()) << resume.status();
  EXPECT_EQ(resume->session_id, session.id);
  EXPECT_EQ(resume->epoch, Epoch(5));
  EXPECT_EQ(resume->attempt.owner, attempt.owner);
  EXPECT_EQ(resume->attempt.number, attempt.number);
  EXPECT_EQ(resume->op_seq, OpSeq(9));
  const auto survives = [&session](auto message) {
    ToProto(session, &message);
    EXPECT_EQ(FromProto(Wire(message)).value(), session);
  };
  survives(pb::DeleteSessionRequest());
  survives(pb::GetSessionRequest());
  survives(pb::SealSessionRequest());
  survives(pb::CreateSessionResponse());
}

TEST_F(KvCodecTest, AllNumbersOfTheStatsSurviveTheRoundTrip) {
  pb::GetStatsResponse message;
  message.set_io_engine("threads");
  const auto& fields = *pb::GetStatsResponse::descriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto* field = fields.field(i);
    using Field = google::protobuf::FieldDescriptor;
    if (field->cpp_type() == Field::CPPTYPE_INT64) {
      message.GetReflection()->SetInt64(&message, field, (std::int64_t{1} << 40) + i);
    } else if (field->cpp_type() == Field::CPPTYPE_INT32) {
      message.GetReflection()->SetInt32(&message, field, 1 + i);
    }
  }
  const absl::StatusOr<KvStats> stats = FromProto(message);
  ASSERT_TRUE(stats.ok()) << stats.status();
  pb::GetStatsResponse again;
  ToProto(*stats, &again);
  EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
}

TEST_F(KvCodecTest, OwnersAndUidsHaveOneLength) {
  const std::string uid(kUidBytes, 'u');
  const auto refused = [](const auto& request, const char* field) {
    const absl::Status status = FromProto(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(Message(status).starts_with(field)) << status;
  };
  pb::OpenSessionRequest open;
  open.set_session_id(7);
  EXPECT_TRUE(FromProto(open).ok());  // nobody's, of whichever session has the number
  open.set_attempt_seq(1);
  refused(open, "attempt_seq");
  open.set_owner(uid);
  EXPECT_TRUE(FromProto(open).ok());
  open.set_attempt_seq(0);
  refused(open, "attempt_seq");
  open.set_owner("short");
  refused(open, "owner");
  open.set_owner("");
  open.set_session_uid("short");
  refused(open, "session_uid");
  pb::ResumeSessionRequest resume;
  resume.set_session_id(7);
  refused(resume, "epoch");
  resume.set_epoch(1);
  EXPECT_TRUE(FromProto(resume).ok());
  resume.set_op_seq(-1);
  refused(resume, "op_seq");
  pb::DeleteSessionRequest remove;
  refused(remove, "session_id");
  pb::SupersedeSessionRequest supersede;
  refused(supersede, "session_id");
  supersede.set_session_id(7);
  refused(supersede, "replacement_session_id");
  supersede.set_replacement_session_id(8);
  EXPECT_TRUE(FromProto(supersede).ok());
  supersede.set_replacement_session_uid("short");
  refused(supersede, "replacement_session_uid");
}

// Each case breaks one field of a valid message; the error must name that field.
struct BadOperation {
  const char* field;
  void (*spoil)(pb::ChannelRequest* request);
};

void FillAppend(pb::ChannelRequest* request) {
  pb::ClusterEntries* cluster = request->mutable_append()->add_clusters();
  cluster->set_cluster_id(1);
  cluster->mutable_positions()->add_starts(4);
  cluster->mutable_positions()->add_lengths(2);
  cluster->set_entries("12345678");
}

TEST(KvCodecErrorsTest, BadAppendNamesTheFieldAndTheElement) {
  const BadOperation cases[] = {
      {"layer", [](auto* r) { r->mutable_append()->set_layer(-1); }},
      {"layer", [](auto* r) { r->mutable_append()->set_layer(kLayerCountMax); }},
      {"clusters[0]: head",
       [](auto* r) { r->mutable_append()->mutable_clusters(0)->set_head(-2); }},
      {"clusters[0]: cluster_id",
       [](auto* r) { r->mutable_append()->mutable_clusters(0)->set_cluster_id(0); }},
      {"clusters[0]: positions",
       [](auto* r) { r->mutable_append()->mutable_clusters(0)->clear_positions(); }},
      {"clusters[0]: positions",
       [](auto* r) {
         r->mutable_append()->mutable_clusters(0)->mutable_positions()->add_starts(9);
       }},
      {"clusters[0]: positions",
       [](auto* r) {
         r->mutable_append()->mutable_clusters(0)->mutable_positions()->set_lengths(0, -1);
       }},
      {"clusters[0]: positions",
       [](auto* r) {
         r->mutable_append()->mutable_clusters(0)->mutable_positions()->set_lengths(0, INT64_MAX);
       }},
      {"clusters[0]: positions",
       [](auto* r) {
         r->mutable_append()->mutable_clusters(0)->mutable_positions()->set_starts(0, INT64_MIN);
       }},
      {"clusters[0]: entries",
       [](auto* r) { r->mutable_append()->mutable_clusters(0)->set_entries("123"); }},
      {"clusters[0]: entries",
       [](auto* r) { r->mutable_append()->mutable_clusters(0)->clear_entries(); }},
  };
  for (const BadOperation& bad : cases) {
    pb::ChannelRequest request;
    FillAppend(&request);
    bad.spoil(&request);
    const absl::Status status = TakeChangingOperation(&request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_NE(Message(status).find(bad.field), std::string::npos) << status;
  }
}

TEST(KvCodecErrorsTest, BadCheckpointNamesTheField) {
  const BadOperation cases[] = {
      {"token_count", [](auto* r) { r->mutable_checkpoint()->set_token_count(-1); }},
      {"token_count", [](auto* r) { r->mutable_checkpoint()->set_token_count(kPositionMax + 2); }},
      {"token_ids_start", [](auto* r) { r->mutable_checkpoint()->set_token_ids_start(11); }},
      {"token_ids has", [](auto* r) { r->mutable_checkpoint()->set_token_ids_start(3); }},
      {"random_state",
       [](auto* r) { r->mutable_checkpoint()->set_random_state(std::string(4097, 'x')); }},
      {"next_cluster_ids", [](auto* r) { r->mutable_checkpoint()->add_next_cluster_ids(-1); }},
  };
  for (const BadOperation& bad : cases) {
    pb::ChannelRequest request;
    request.mutable_checkpoint()->set_token_count(10);
    request.mutable_checkpoint()->set_token_ids_start(10);
    bad.spoil(&request);
    const absl::Status status = TakeChangingOperation(&request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_NE(Message(status).find(bad.field), std::string::npos) << status;
  }
}

TEST(KvCodecErrorsTest, FetchOfTooManyClustersIsRefused) {
  pb::ChannelRequest request;
  for (int i = 0; i <= kFetchClusterCountMax; ++i) {
    request.mutable_fetch()->add_clusters()->set_cluster_id(i + 1);
  }
  const absl::Status status = ReadOperationFromProto(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("clusters has 4097 elements"), std::string::npos) << status;
}

TEST(KvCodecErrorsTest, UnknownKvFormatIsRefused) {
  RandomValues random(1);
  CreateSession create;
  create.layout = random.Layout();
  create.key = random.Key(create.layout.kv_format);
  pb::CreateSessionRequest request = ToProto(create);
  request.mutable_layout()->set_kv_format(static_cast<pb::KvFormat>(9));
  const absl::Status status = FromProto(std::move(request)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("layout.kv_format is 9"), std::string::npos) << status;
}

TEST(KvCodecErrorsTest, FailureKeepsCodeAndMessage) {
  pb::ChannelReply reply;
  SetFailure(DataLoss("part {} is lost", 7), &reply);
  EXPECT_EQ(FailureStatus(reply.failure()), DataLoss("part 7 is lost"));
}

}  // namespace
}  // namespace cairn::rpc
