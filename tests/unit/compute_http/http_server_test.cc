#include "compute-node/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/io/open_files.h"
#include "compute-node/http/http_syntax.h"
#include "tests/tools/descriptors_left.h"
#include "tests/tools/says.h"

namespace cairn::compute {
namespace {

// Says what it was asked.
class EchoHandler final : public HttpHandler {
 public:
  HttpReply Admit(const HttpRequest& request) override {
    return {.status = request.path == "/refused" ? 404 : 200,
            .body = "refused",
            .headers = {},
            .stream = {}};
  }
  HttpReply Answer(HttpRequest& request, const HttpConnected& connected) override {
    ++answers;
    if (request.path == "/wait") {
      ++waiting;
      while (connected()) std::this_thread::yield();
      saw_end = true;
    }
    if (request.path == "/memory") throw std::bad_alloc();
    if (request.path == "/stream") {
      return {
          .body = "", .headers = {}, .stream = [](const HttpWrite& write, const HttpConnected&) {
            return write("data: 1\n\n") && write("data: 2\n\n");
          }};
    }
    return {.body = fmt::format("{} {} {} {}", request.method, request.path, request.Header("Host"),
                                request.body.size()),
            .headers = {{"X-Test", "yes"}},
            .stream = {}};
  }

  std::atomic<int> answers{0};
  std::atomic<int> waiting{0};
  std::atomic<bool> saw_end{false};
};

// A client that may say anything.
class RawClient {
 public:
  RawClient() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit RawClient(std::uint16_t port) : RawClient() { Connect(port); }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Connect(std::uint16_t port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  // False: the server does not take it any more.
  bool Send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Up to and with `end`, or all until the server closes.
  std::string Read(std::string_view end) const {
    std::string text;
    char c = 0;
    while (text.find(end) == std::string::npos && ::recv(socket_, &c, 1, 0) == 1) text += c;
    return text;
  }
  std::string ReadAll() const { return Read("\r\n\r\n\r\nnever"); }

 private:
  const int socket_;
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<HttpServer>> server =
        HttpServer::Start(ParseListenAddress("127.0.0.1:0").value(), handler_, memory_);
    ASSERT_TRUE(server.ok()) << Message(server.status());
    server_ = *std::move(server);
    port_ = server_->address().port;
  }

  // Everything that comes back for one request, after which the client sends no more.
  std::string Ask(const std::string& request) {
    const RawClient client(port_);
    client.Send(request);
    return client.ReadAll();
  }

  EchoHandler handler_;
  MemoryBudget memory_{kRequestMemoryBytesDefault};
  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
};

constexpr const char* kClose = "Host: h\r\nConnection: close\r\n";

TEST_F(HttpServerTest, RequestsFollowEachOtherOnOneConnection) {
  const RawClient client(port_);
  client.Send("GET /a%20b?q=1 HTTP/1.1\r\nHost: first\r\n\r\n");
  EXPECT_NE(client.Read("GET /a b first 0").find("X-Test: yes"), std::string::npos);
  client.Send("POST /b HTTP/1.1\r\nHost: second\r\nContent-Length: 5\r\n\r\n12345");
  EXPECT_NE(client.Read("POST /b second 5").find("200 OK"), std::string::npos);
  client.Send(
      "POST /c HTTP/1.1\r\nHost: third\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\n123\r\n4\r\n4567\r\n0\r\n\r\n");
  EXPECT_NE(client.Read("POST /c third 7").find("200 OK"), std::string::npos);
  client.Send("\r\nGET /d HTTP/1.1\r\nHost: d\r\n\r\nGET /e HTTP/1.1\r\nHost: e\r\n\r\n");
  EXPECT_NE(client.Read("GET /d d 0").find("200 OK"), std::string::npos);
  EXPECT_NE(client.Read("GET /e e 0").find("200 OK"), std::string::npos);
}

TEST_F(HttpServerTest, AStreamIsSentInChunks) {
  const std::string reply = Ask(fmt::format("GET /stream HTTP/1.1\r\n{}\r\n", kClose));
  EXPECT_NE(reply.find("Content-Type: text/event-stream"), std::string::npos);
  EXPECT_NE(reply.find("9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"), std::string::npos)
      << reply;
}

TEST_F(HttpServerTest, ARefusedRequestIsAnsweredBeforeItsBodyAndEndsTheConnection) {
  const RawClient client(port_);
  client.Send("POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
  const std::string reply = client.ReadAll();
  EXPECT_NE(reply.find("404"), std::string::npos);
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
  // One that is asked for permission gets none.
  EXPECT_NE(Ask("POST /refused HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9\r\n"
                "\r\n")
                .find("404"),
            std::string::npos);
  EXPECT_EQ(handler_.answers, 0);
}

TEST_F(HttpServerTest, AClientThatAsksFirstIsToldToSendItsBody) {
  const RawClient client(port_);
  client.Send("POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.Read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("123");
  EXPECT_NE(client.Read("POST /a h 3").find("200 OK"), std::string::npos);
}

TEST_F(HttpServerTest, AReplyToHeadHasNoBody) {
  const std::string reply = Ask(fmt::format("HEAD /a HTTP/1.1\r\n{}\r\n", kClose));
  EXPECT_NE(reply.find("Content-Length: 11"), std::string::npos) << reply;
  EXPECT_TRUE(reply.ends_with("\r\n\r\n")) << reply;
}

TEST_F(HttpServerTest, WhatIsTooLongIsToldThoughItIsNotReadToItsEnd) {
  const std::string big(static_cast<std::size_t>(kHttpBodyBytesMax) + (1 << 20), 'x');
  const std::string chunked = fmt::format(
      "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
      big.size(), big);
  EXPECT_NE(Ask(chunked).find("413"), std::string::npos);
  EXPECT_NE(Ask("GET /" + big).find("414"), std::string::npos);
  EXPECT_NE(Ask("GET /a HTTP/1.1\r\nX: " + big).find("413"), std::string::npos);
  EXPECT_EQ(handler_.answers, 0);
  EXPECT_NE(Ask(fmt::format("GET /a HTTP/1.1\r\n{}\r\n", kClose)).find("200"), std::string::npos);
}

TEST_F(HttpServerTest, WhatIsRefusedEndsTheConnection) {
  for (const char* lines :
       {"Host: a\r\nHost: b\r\n", "Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Host: a\r\nContent-Encoding: gzip\r\nContent-Length: 40\r\n"}) {
    const std::string reply = Ask(
        fmt::format("POST /a HTTP/1.1\r\n{}\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n", lines));
    EXPECT_NE(reply.find("HTTP/1.1 4"), std::string::npos) << reply;
    EXPECT_NE(reply.find("Connection: close"), std::string::npos) << reply;
    EXPECT_EQ(reply.find("smuggled"), std::string::npos) << reply;
  }
  EXPECT_EQ(handler_.answers, 0);
}

TEST_F(HttpServerTest, BodiesShareOneBudget) {
  MemoryBudget memory(kRequestMemoryBytesMin);
  const std::unique_ptr<HttpServer> server =
      HttpServer::Start(ParseListenAddress("127.0.0.1:0").value(), handler_, memory).value();
  const auto ask = [&server](std::int64_t bytes, bool chunked) {
    const RawClient client(server->address().port);
    const std::string body(static_cast<std::size_t>(bytes), 'x');
    client.Send(chunked ? fmt::format("POST /a HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n"
                                      "{:x}\r\n{}\r\n0\r\n\r\n",
                                      kClose, bytes, body)
                        : fmt::format("POST /a HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{}", kClose,
                                      bytes, body));
    return client.ReadAll();
  };
  for (const bool chunked : {false, true}) {
    EXPECT_NE(ask(memory.request_bytes_max(), chunked).find("200"), std::string::npos);
    EXPECT_NE(ask(memory.request_bytes_max() + 1, chunked).find("413"), std::string::npos);
    MemoryClaim others(memory);
    ASSERT_TRUE(others.Resize(memory.claim_bytes_max()).ok());
    const std::string refused = ask(memory.request_bytes_max(), chunked);
    EXPECT_NE(refused.find("503"), std::string::npos) << refused;
    EXPECT_NE(refused.find("Retry-After"), std::string::npos) << refused;
    EXPECT_NE(ask(kRequestFreeBytes, chunked).find("200"), std::string::npos);
    others.Release();
  }
  EXPECT_EQ(memory.claimed_bytes(), 0);
}

TEST_F(HttpServerTest, HalfABodyHoldsWhatHasComeAndGivesItBackWithItsConnection) {
  const std::string half(1 << 20, 'x');
  {
    const RawClient client(port_);
    client.Send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 16000000\r\n\r\n" + half);
    while (memory_.claimed_bytes() < RequestMemoryBytes(std::ssize(half))) {
      std::this_thread::yield();
    }
    EXPECT_LT(memory_.claimed_bytes(), 2 * RequestMemoryBytes(std::ssize(half)));
  }
  while (memory_.claimed_bytes() > 0) std::this_thread::yield();
  EXPECT_EQ(handler_.answers, 0);
}

TEST_F(HttpServerTest, ARequestForWhichThereIsNoMemoryIsRefusedAlone) {
  EXPECT_NE(Ask(fmt::format("GET /memory HTTP/1.1\r\n{}\r\n", kClose)).find("503"),
            std::string::npos);
  EXPECT_NE(Ask(fmt::format("GET /a HTTP/1.1\r\n{}\r\n", kClose)).find("200"), std::string::npos);
}

TEST_F(HttpServerTest, AClientOfHttp10GetsItsStreamWithoutChunks) {
  const std::string reply =
      Ask("GET /stream HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(reply.find("chunked"), std::string::npos) << reply;
  EXPECT_NE(reply.find("Connection: close"), std::string::npos) << reply;
  EXPECT_NE(reply.find("\r\n\r\ndata: 1\n\ndata: 2\n\n"), std::string::npos) << reply;
  EXPECT_TRUE(reply.ends_with("data: 2\n\n")) << reply;
}

TEST_F(HttpServerTest, ABodyOfAGetIsNotTheNextRequest) {
  const std::string reply =
      Ask("GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\n\r\n"
          "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(reply.find("GET /a"), std::string::npos);
  EXPECT_EQ(reply.find("smuggled"), std::string::npos);
}

TEST_F(HttpServerTest, RangesAndCompressionAreNotFollowed) {
  const std::string reply = Ask(fmt::format(
      "GET /a HTTP/1.1\r\n{}Range: bytes=0-1,0-1\r\nAccept-Encoding: gzip\r\n\r\n", kClose));
  EXPECT_NE(reply.find("200 OK"), std::string::npos);
  EXPECT_NE(reply.find("GET /a h 0"), std::string::npos);
}

TEST_F(HttpServerTest, AClientThatGoesAwayIsNoticedInTheMiddle) {
  {
    const RawClient client(port_);
    client.Send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    while (!handler_.waiting) std::this_thread::yield();
    EXPECT_FALSE(handler_.saw_end);
  }
  while (!handler_.saw_end) std::this_thread::yield();
}

TEST_F(HttpServerTest, AClientThatNeverStopsSendingIsCutOff) {
  const RawClient client(port_);
  client.Send("POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
  const std::string some(1 << 16, 'x');
  while (client.Send(some)) {
  }
  EXPECT_EQ(handler_.answers, 0);
}

TEST_F(HttpServerTest, StopEndsWaitingConnectionsAndThoseInTheMiddle) {
  const RawClient idle(port_);
  const RawClient busy(port_);
  busy.Send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  while (!handler_.waiting) std::this_thread::yield();
  server_->Stop(std::chrono::seconds(10));
  EXPECT_TRUE(handler_.saw_end);
  EXPECT_EQ(idle.ReadAll(), "");
  // The reply could still be written.
  EXPECT_NE(busy.ReadAll().find("GET /wait"), std::string::npos);
}

TEST_F(HttpServerTest, OneConnectionTooManyIsToldSoWhereAllAreBusy) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kHttpConnectionsMax; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->Send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    while (handler_.waiting <= i) std::this_thread::yield();
  }
  const std::string reply = RawClient(port_).ReadAll();
  EXPECT_NE(reply.find("503"), std::string::npos);
  EXPECT_NE(reply.find("Retry-After"), std::string::npos);
}

TEST_F(HttpServerTest, TheConnectionThatIsIdleLongestMakesRoom) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kHttpConnectionsMax; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    // One after the other: the reply is read before its connection waits for the next request.
    while (server_->idle_count() <= i) std::this_thread::yield();
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(Ask(fmt::format("GET /b HTTP/1.1\r\n{}\r\n", kClose)).find("200 OK"),
              std::string::npos);
  }
  EXPECT_EQ(clients[0]->ReadAll(), "");
  for (std::size_t i = 3; i < clients.size(); ++i) {
    clients[i]->Send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_NE(clients[i]->Read("GET /c h 0").find("200 OK"), std::string::npos) << i;
  }
}

TEST_F(HttpServerTest, WithoutDescriptorsClientsWaitAndIdleConnectionsMakeRoom) {
  const RawClient idle(port_);
  idle.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
  idle.Read("GET /a h 0");
  const RawClient second;
  const test::DescriptorsLeft own(kOpenFilesReserved);
  second.Connect(port_);
  EXPECT_EQ(idle.ReadAll(), "");
  // It stays, idle as it is, as long as nobody else waits.
  while (server_->idle_count() < 1) std::this_thread::yield();
  second.Send(fmt::format("GET /b HTTP/1.1\r\n{}\r\n", kClose));
  EXPECT_NE(second.ReadAll().find("200 OK"), std::string::npos);
}

TEST_F(HttpServerTest, APortThatIsTakenIsNamed) {
  const ListenAddress taken = server_->address();
  const absl::Status status = HttpServer::Start(taken, handler_, memory_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(test::Says(status, taken.ToText())) << Message(status);
}

}  // namespace
}  // namespace cairn::compute
