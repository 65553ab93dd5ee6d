// Unary calls: identity, validation, the mapping of errors.
#include "kv-node/service/kv_service.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/unit/service/fake_node.h"

namespace cairn::kv {
namespace {

using fake::FakeNode;
using fake::RawClient;

class KvServiceTest : public testing::Test {
 protected:
  FakeNode node_;
};

TEST_F(KvServiceTest, CallWithoutATokenIsUnauthenticated) {
  RawClient client(node_.socket_path(), "none");
  v1::GetCapabilitiesResponse response;
  const grpc::Status status = client.stub().GetCapabilities(client.Context().get(), {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_NE(status.error_message().find("handshake"), std::string::npos);
}

TEST_F(KvServiceTest, EveryCallRefusesAnUnknownToken) {
  RawClient client(node_.socket_path(), std::string(64, '0'));
  const auto expect_refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  };
  v1::CreateSessionResponse create;
  expect_refused(
      client.stub().CreateSession(client.Context().get(), fake::ValidCreateSession(), &create));
  v1::OpenSessionResponse open;
  expect_refused(client.stub().OpenSession(client.Context().get(), {}, &open));
  v1::ResumeSessionResponse resume;
  expect_refused(client.stub().ResumeSession(client.Context().get(), {}, &resume));
  v1::CloseSessionResponse close;
  expect_refused(client.stub().CloseSession(client.Context().get(), {}, &close));
  v1::DeleteSessionResponse deleted;
  expect_refused(client.stub().DeleteSession(client.Context().get(), {}, &deleted));
  v1::GetSessionResponse one;
  expect_refused(client.stub().GetSession(client.Context().get(), {}, &one));
  v1::ListSessionsResponse list;
  expect_refused(client.stub().ListSessions(client.Context().get(), {}, &list));
  v1::SealSessionResponse seal;
  expect_refused(client.stub().SealSession(client.Context().get(), {}, &seal));
  v1::GetStatsResponse stats;
  expect_refused(client.stub().GetStats(client.Context().get(), {}, &stats));
  const auto context = client.Context();
  expect_refused(client.stub().Channel(context.get())->Finish());
}

TEST_F(KvServiceTest, TokenOfAnEarlierStartIsUnknown) {
  const std::string token = fake::HandshakeToken(node_.socket_path());
  node_.Stop();
  node_.Start();
  RawClient client(node_.socket_path(), token);
  v1::GetStatsResponse stats;
  EXPECT_EQ(client.stub().GetStats(client.Context().get(), {}, &stats).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(KvServiceTest, CapabilitiesTellLimitsAndLackWhatIsNotBuilt) {
  RawClient client(node_.socket_path());
  v1::GetCapabilitiesResponse response;
  ASSERT_TRUE(client.stub().GetCapabilities(client.Context().get(), {}, &response).ok());
  EXPECT_EQ(response.boot_token().size(), 16U);
  EXPECT_EQ(response.protocol_version(), 1);
  EXPECT_EQ(response.page_bytes(), 4096);
  EXPECT_EQ(response.message_bytes_max(), kMessageBytesMax);
  EXPECT_EQ(response.part_bytes_max(), 65536);
  EXPECT_EQ(response.fetches_in_flight_max(), kFetchesInFlightMax);
  EXPECT_EQ(response.io_engine(), "memory");
  EXPECT_EQ(response.store_id(), std::string(16, 's'));
  bool evict = false;
  int fetch_index_count = 0;
  for (const int operation : response.operations()) {
    evict |= operation == v1::OPERATION_EVICT;
    const bool is_fetch_index =
        operation == v1::OPERATION_FETCH_INDEX || operation == v1::OPERATION_FETCH_VISIBLE_INDEX;
    fetch_index_count += is_fetch_index ? 1 : 0;
    EXPECT_NE(operation, v1::OPERATION_ARENA);
  }
  EXPECT_TRUE(evict);
  EXPECT_EQ(fetch_index_count, 2);
}

TEST_F(KvServiceTest, EveryReplyCarriesTheBootTokenWhichARestartChanges) {
  std::string boot;
  {
    RawClient client(node_.socket_path());
    v1::GetStatsResponse stats;
    ASSERT_TRUE(client.stub().GetStats(client.Context().get(), {}, &stats).ok());
    v1::CreateSessionResponse created;
    ASSERT_TRUE(client.stub()
                    .CreateSession(client.Context().get(), fake::ValidCreateSession(), &created)
                    .ok());
    boot = stats.boot_token();
    EXPECT_EQ(boot.size(), 16U);
    EXPECT_EQ(created.boot_token(), boot);
  }
  node_.Stop();
  node_.Start();
  RawClient client(node_.socket_path());
  v1::GetStatsResponse stats;
  ASSERT_TRUE(client.stub().GetStats(client.Context().get(), {}, &stats).ok());
  EXPECT_NE(stats.boot_token(), boot);
}

TEST_F(KvServiceTest, InvalidRequestNamesItsField) {
  RawClient client(node_.socket_path());
  v1::CreateSessionRequest request = fake::ValidCreateSession();
  request.mutable_layout()->set_head_dim(0);
  v1::CreateSessionResponse response;
  const grpc::Status status =
      client.stub().CreateSession(client.Context().get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("head_dim is 0"), std::string::npos);
}

TEST_F(KvServiceTest, ErrorOfTheEngineKeepsItsCodeAndMessage) {
  RawClient client(node_.socket_path());
  v1::OpenSessionRequest request;
  request.set_session_id(77);
  v1::OpenSessionResponse response;
  const grpc::Status status = client.stub().OpenSession(client.Context().get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_NE(status.error_message().find("77"), std::string::npos);
}

TEST_F(KvServiceTest, ASessionIsFoundByItsNumberAndUid) {
  RawClient client(node_.socket_path());
  v1::CreateSessionRequest create = fake::ValidCreateSession();
  create.set_session_uid(std::string(kUidBytes, 'u'));
  v1::CreateSessionResponse created;
  ASSERT_TRUE(client.stub().CreateSession(client.Context().get(), create, &created).ok());
  v1::GetSessionRequest request;
  v1::GetSessionResponse response;
  const auto get = [&] {
    return client.stub().GetSession(client.Context().get(), request, &response).error_code();
  };
  EXPECT_EQ(get(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_session_id(created.session_id());
  ASSERT_EQ(get(), grpc::StatusCode::OK);
  EXPECT_EQ(response.session().session_id(), created.session_id());
  EXPECT_EQ(response.session().session_uid(), create.session_uid());
  EXPECT_EQ(response.session().own_flash_bytes(), 0);
  EXPECT_FALSE(response.boot_token().empty());
  request.set_session_uid(create.session_uid());
  request.set_with_flash_use(true);
  ASSERT_EQ(get(), grpc::StatusCode::OK);
  EXPECT_EQ(response.session().own_flash_bytes(), 1);
  request.set_session_uid(std::string(kUidBytes, 'v'));
  EXPECT_EQ(get(), grpc::StatusCode::FAILED_PRECONDITION);
  request.set_session_id(77);
  EXPECT_EQ(get(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(KvServiceTest, ListGoesThroughAllSessionsByPages) {
  RawClient client(node_.socket_path());
  for (int i = 0; i < 5; ++i) {
    v1::CreateSessionResponse created;
    ASSERT_TRUE(client.stub()
                    .CreateSession(client.Context().get(), fake::ValidCreateSession(), &created)
                    .ok());
  }
  std::vector<std::int64_t> ids;
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    v1::ListSessionsResponse response;
    ASSERT_TRUE(client.stub().ListSessions(client.Context().get(), request, &response).ok());
    EXPECT_LE(response.sessions_size(), 2);
    for (const v1::SessionInfo& info : response.sessions()) ids.push_back(info.session_id());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{5, 4, 3, 2, 1}));
}

TEST_F(KvServiceTest, ListRefusesBadPages) {
  RawClient client(node_.socket_path());
  v1::ListSessionsResponse response;
  v1::ListSessionsRequest request;
  request.set_page_size(1001);
  EXPECT_EQ(client.stub().ListSessions(client.Context().get(), request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_page_size(1);
  request.set_page_token("12x");
  EXPECT_EQ(client.stub().ListSessions(client.Context().get(), request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace cairn::kv
