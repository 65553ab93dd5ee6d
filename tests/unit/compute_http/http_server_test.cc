#include "compute-node/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include <gtest/gtest.h>

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
  HttpReply Answer(const HttpRequest& request, const HttpConnected& connected) override {
    ++answers;
    if (request.path == "/wait") {
      waiting = true;
      while (connected()) std::this_thread::yield();
      saw_end = true;
    }
    if (request.path == "/stream") {
      return {
          .body = "", .headers = {}, .stream = [](const HttpWrite& write, const HttpConnected&) {
            return write("data: 1\n\n") && write("data: 2\n\n");
          }};
    }
    return {.body = fmt::format("{} {} {} {}", request.method, request.path, request.host,
                                request.body.size()),
            .headers = {{"X-Test", "yes"}},
            .stream = {}};
  }

  std::atomic<int> answers{0};
  std::atomic<bool> waiting{false};
  std::atomic<bool> saw_end{false};
};

// A client that may say anything.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

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
        HttpServer::Start(ParseListenAddress("127.0.0.1:0").value(), handler_);
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

TEST_F(HttpServerTest, TooLongIsRefusedWhateverTheRequestSaid) {
  const std::string big(static_cast<std::size_t>(kHttpBodyBytesMax) + (1 << 20), 'x');
  EXPECT_NE(
      Ask(fmt::format("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", big.size()))
          .find("413"),
      std::string::npos);
  EXPECT_NE(Ask("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\n")
                .find("413"),
            std::string::npos);
  const std::string chunked = fmt::format(
      "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
      big.size(), big);
  EXPECT_NE(Ask(chunked).find("413"), std::string::npos);
  const std::string header(static_cast<std::size_t>(kHttpHeaderBytesMax), 'x');
  EXPECT_NE(Ask("GET /a HTTP/1.1\r\nHost: h\r\nX: " + header + "\r\n\r\n").find("413"),
            std::string::npos);
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += fmt::format("X{}: y\r\n", i);
  EXPECT_NE(Ask("GET /a HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n").find("413"), std::string::npos);
  EXPECT_NE(Ask("GET /" + std::string(kHttpPathBytesMax, 'a') + " HTTP/1.1\r\n" + kClose + "\r\n")
                .find("414"),
            std::string::npos);
  Ask("GET /" + header);  // a first line without an end: closed
  EXPECT_EQ(handler_.answers, 0);
  EXPECT_NE(Ask(fmt::format("GET /a HTTP/1.1\r\n{}\r\n", kClose)).find("200"), std::string::npos);
}

TEST_F(HttpServerTest, WhatIsAmbiguousOrPackedIsRefused) {
  for (const char* lines :
       {"Host: a\r\nHost: b\r\n", "Host: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n"}) {
    EXPECT_NE(
        Ask(fmt::format("POST /a HTTP/1.1\r\n{}Connection: close\r\n\r\n", lines)).find("400"),
        std::string::npos)
        << lines;
  }
  EXPECT_NE(
      Ask("POST /a HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n")
          .find("415"),
      std::string::npos);
  for (const char* garbage :
       {"garbage\r\n\r\n", "GET /\r\n\r\n", "\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02\x01\x01\r\n\r\n", "BREW /a HTTP/1.1\r\n\r\n"}) {
    EXPECT_NE(Ask(garbage).find("400"), std::string::npos) << garbage;
  }
  EXPECT_EQ(handler_.answers, 0);
}

// All that comes behind such a header is the rest of a body, or nobody's.
TEST_F(HttpServerTest, ABodyWithoutAClearEndIsRefusedAndEndsTheConnection) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "411"},  // it would last until the end of the connection
      {"Content-Length: abc\r\n", "400"},
      {"Content-Length: 0x1\r\n", "400"},
      {"Content-Length: +1\r\n", "400"},
      {"Content-Length: 1, 1\r\n", "400"},
      {"Content-Length:\r\n", "411"},
      {"Content-Length: -5\r\n", "400"},
      {"Transfer-Encoding: identity\r\n", "501"},
      {"Transfer-Encoding: gzip, chunked\r\n", "501"},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "400"},
  };
  for (const auto& [lines, status] : cases) {
    const std::string reply =
        Ask(fmt::format("POST /a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n{}\r\n"
                        "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
                        lines));
    EXPECT_NE(reply.find(fmt::format("HTTP/1.1 {} ", status)), std::string::npos) << reply;
    EXPECT_NE(reply.find("Connection: close"), std::string::npos) << reply;
    EXPECT_EQ(reply.find("smuggled"), std::string::npos) << reply;
  }
  EXPECT_EQ(handler_.answers, 0);
}

TEST_F(HttpServerTest, NothingFollowsABodyInChunks) {
  // The library takes a chunk that is longer than it says for the last one.
  const std::string reply =
      Ask("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
          "3\r\n123XX\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(reply.find("Connection: close"), std::string::npos) << reply;
  EXPECT_EQ(reply.find("smuggled"), std::string::npos) << reply;
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

TEST_F(HttpServerTest, OneConnectionTooManyIsToldSo) {
  std::vector<std::unique_ptr<RawClient>> clients;
  clients.reserve(kHttpConnectionsMax);
  for (int i = 0; i < kHttpConnectionsMax; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
  }
  const std::string reply = RawClient(port_).ReadAll();
  EXPECT_NE(reply.find("503"), std::string::npos);
  EXPECT_NE(reply.find("Retry-After"), std::string::npos);
  // Those that are in can go on, and their places can be taken again.
  clients[0]->Send(fmt::format("GET /a HTTP/1.1\r\n{}\r\n", kClose));
  EXPECT_NE(clients[0]->ReadAll().find("200 OK"), std::string::npos);
}

TEST_F(HttpServerTest, APortThatIsTakenIsNamed) {
  const ListenAddress taken = server_->address();
  const absl::Status status = HttpServer::Start(taken, handler_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(test::Says(status, taken.ToText())) << Message(status);
}

}  // namespace
}  // namespace cairn::compute
