#include "compute-node/http/http_syntax.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

using namespace std::string_literals;

constexpr std::size_t kAtOnce = kHttpReadBytesMax;

// Bytes that come from a client, so many at a time, and then the end.
class Incoming {
 public:
  Incoming(std::string bytes, std::size_t piece) : socket_(Make()) {
    sender_ = std::thread([this, bytes = std::move(bytes), piece] {
      for (std::size_t i = 0; i < bytes.size(); i += piece) {
        const std::string_view sent = std::string_view(bytes).substr(i, piece);
        if (::send(ends_[1], sent.data(), sent.size(), MSG_NOSIGNAL) < 0) return;
      }
      ::shutdown(ends_[1], SHUT_WR);
    });
  }
  ~Incoming() {
    ::shutdown(ends_[0], SHUT_RDWR);
    sender_.join();
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  HttpSocket& socket() { return socket_; }

 private:
  // Each send is one read.
  int Make() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_.data()), 0);
    return ends_[0];
  }

  std::array<int, 2> ends_{-1, -1};
  HttpSocket socket_;
  std::thread sender_;
};

constexpr int kGone = 0;
constexpr int kTaken = 200;

int Outcome(const HttpRead& read) {
  if (read.kind == HttpRead::Kind::kGone) return kGone;
  return read.kind == HttpRead::Kind::kDone ? kTaken : read.refusal.status;
}

// Of a request with its body.
int Read(const std::string& bytes, std::size_t piece, HttpRequest& request) {
  Incoming incoming(bytes, piece);
  RequestReader reader(incoming.socket(), kHttpBodyBytesMax);
  const int header = Outcome(reader.ReadHeader(request));
  return header == kTaken && reader.has_body() ? Outcome(reader.ReadBody()) : header;
}

struct Case {
  std::string what;
  std::string bytes;
  int outcome = 0;
};

// Whatever the pieces are in which it comes.
void Check(const Case& each) {
  for (const std::size_t piece : {kAtOnce, std::size_t{7}, std::size_t{1}}) {
    // Of the long ones the end of a piece is at every place that matters in thousands anyhow.
    if (piece < kAtOnce && each.bytes.size() > 4096) continue;
    HttpRequest request;
    EXPECT_EQ(Read(each.bytes, piece, request), each.outcome)
        << each.what << " in pieces of " << piece;
  }
}

std::string Get(const std::string& lines) { return "GET / HTTP/1.1\r\n" + lines + "\r\n"; }
std::string Post(const std::string& lines, const std::string& body) {
  return "POST / HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n" + body;
}
std::string Chunks(const std::string& body) { return Post("Transfer-Encoding: chunked\r\n", body); }
// A header line of so many bytes, with its end.
std::string Line(std::int64_t bytes) {
  return "X: " + std::string(static_cast<std::size_t>(bytes) - 5, 'a') + "\r\n";
}

TEST(HttpSyntaxTest, ARequestIsReadInAnyPieces) {
  const std::string bytes =
      "POST /a%20b/%C3%A4?q=1&r HTTP/1.1\r\nhost: localhost:80\r\nX-Empty:\r\n"
      "X-Spaces:  a\tb \t\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3;name=value;other=\"q;\"\r\n123\r\n00004\r\n4567\r\n0\r\nTrailer: x\r\nHost: evil\r\n\r\n";
  for (const std::size_t piece : {kAtOnce, std::size_t{7}, std::size_t{1}}) {
    HttpRequest request;
    EXPECT_EQ(Read(bytes, piece, request), kTaken);
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a b/\xc3\xa4");
    EXPECT_EQ(request.Header("Host"), "localhost:80");
    EXPECT_EQ(request.HeaderCount("x-empty"), 1);
    EXPECT_EQ(request.Header("x-spaces"), "a\tb");
    EXPECT_EQ(request.HeaderCount("Trailer"), 0);
    EXPECT_EQ(request.body, "1234567");
  }
}

TEST(HttpSyntaxTest, ATargetMayNameTheHostAsForAProxy) {
  for (const auto& [target, path] :
       {std::pair("http://localhost:80/v1/models?a=/b", "/v1/models"),
        std::pair("HTTP://LOCALHOST:80/a%20b", "/a b"), std::pair("http://localhost:80", "/"),
        std::pair("http://localhost:80?a", "/")}) {
    HttpRequest request;
    EXPECT_EQ(Read(fmt::format("GET {} HTTP/1.1\r\nHost: localhost:80\r\n\r\n", target), kAtOnce,
                   request),
              kTaken)
        << target;
    EXPECT_EQ(request.path, path);
  }
}

TEST(HttpSyntaxTest, LengthsUpToTheLimitsAreTakenAndOneByteMoreIsNot) {
  const auto path = [](std::int64_t bytes) {
    return "GET /" + std::string(static_cast<std::size_t>(bytes) - 1, 'a') +
           " HTTP/1.1\r\nHost: h\r\n\r\n";
  };
  std::string many;
  while (std::ssize(many) < kHttpHeaderBytesMax - 64) many += Line(32);
  const std::string name(9000, 'n');
  const std::string body(static_cast<std::size_t>(kHttpBodyBytesMax), 'x');
  const auto length = [](std::int64_t bytes) {
    return fmt::format("Content-Length: {}\r\n", bytes);
  };
  const auto short_lines = [](int count) {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += "a:\r\n";
    return lines;
  };
  for (const Case& each : {
           Case{"a line of 8192 bytes", Get(Line(8192)), 200},
           Case{"a line of 8193 bytes", Get(Line(8193)), 200},
           Case{"a line of 16,024 bytes", Get(Line(16024)), 200},
           Case{"all that is allowed", Get(Line(kHttpHeaderBytesMax - 2)), 200},
           Case{"one byte more", Get(Line(kHttpHeaderBytesMax - 1)), 413},
           Case{"many lines", Get(many), 200},
           Case{"many lines more", Get(many + many), 413},
           Case{"a header without an end", fmt::format("GET / HTTP/1.1\r\n{0}{0}", many), 413},
           Case{"a line without an end", "GET / HTTP/1.1\r\nX: " + std::string(20000, 'a'), 413},
           Case{"a long name", Get(name + ": x\r\n"), 200},
           Case{"a path of 1024 bytes", path(1024), 200},
           Case{"a path of 1025 bytes", path(1025), 414},
           Case{"a path of 1024 characters, written in three bytes each",
                "GET /" + std::string(std::size_t{1023} * 3, '%').replace(0, 3, "%41") +
                    " HTTP/1.1\r\n\r\n",
                400},
           Case{"a path of 8191 bytes", path(8191), 414},
           Case{"a path of 20,000 bytes", path(20000), 414},
           Case{"a path without an end", "GET /" + std::string(20000, 'a'), 414},
           Case{"a long query", "GET /?" + std::string(4000, 'a') + " HTTP/1.1\r\n\r\n", 200},
           Case{"a long method", std::string(20000, 'G') + " / HTTP/1.1\r\n\r\n", 414},
           Case{"a body of the most", Post(length(kHttpBodyBytesMax), body), 200},
           Case{"a body of more", Post(length(kHttpBodyBytesMax + 1), ""), 413},
           Case{"a body of 2^63", Post("Content-Length: 9223372036854775808\r\n", ""), 413},
           Case{"a body of 2^64-1", Post("Content-Length: 18446744073709551615\r\n", ""), 413},
           Case{"a body of 2^64", Post("Content-Length: 18446744073709551616\r\n", ""), 400},
           Case{"a long line of a chunk", Chunks("3;" + std::string(40000, 'a')), 413},
           Case{"a long end of chunks", Chunks("0\r\nX: " + std::string(40000, 'a')), 413},
           Case{"a whole line of a chunk of the most",
                Chunks("3;" + std::string((16 << 10) - 1, 'a') + "\r\n123\r\n0\r\n\r\n"), 200},
           Case{"a whole line of a chunk of more",
                Chunks("3;" + std::string(16 << 10, 'a') + "\r\n123\r\n0\r\n\r\n"), 413},
           Case{"a whole end of chunks", Chunks("0\r\nX: " + std::string(17000, 'a') + "\r\n\r\n"),
                413},
           Case{"two short lines behind chunks that are long together",
                Chunks("0\r\nX: " + std::string(9000, 'a') + "\r\nY: " + std::string(9000, 'a') +
                       "\r\n\r\n"),
                413},
           Case{"short lines behind chunks", Chunks("0\r\n" + short_lines(4096) + "\r\n"), 200},
           Case{"a short line more", Chunks("0\r\n" + short_lines(4097) + "\r\n"), 413},
           Case{"many lines behind chunks", Chunks(fmt::format("0\r\n{0}{0}{0}", many)), 413},
           Case{"a chunk of the most and one of more",
                Chunks(fmt::format("{:x}\r\n{}\r\n1\r\n", body.size(), body)), 413},
       }) {
    Check(each);
  }
}

TEST(HttpSyntaxTest, WhatIsReadInTwoWaysIsRefused) {
  for (const Case& each : {
           Case{"two lengths", Post("Content-Length: 3\r\nContent-Length: 4\r\n", "1234"), 400},
           Case{"one length twice", Post("Content-Length: 3\r\nContent-Length: 3\r\n", "123"), 400},
           Case{"a list of lengths", Post("Content-Length: 3, 3\r\n", "123"), 400},
           Case{"a length and chunks",
                Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
           Case{"chunks and a length",
                Post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n"), 400},
           Case{"a length with a sign", Post("Content-Length: +3\r\n", "123"), 400},
           Case{"a negative length", Post("Content-Length: -3\r\n", "123"), 400},
           Case{"a length in base 16", Post("Content-Length: 0x3\r\n", "123"), 400},
           Case{"a length with a space", Post("Content-Length: 3 3\r\n", "123"), 400},
           Case{"a length that is empty", Post("Content-Length: \r\n", "123"), 400},
           Case{"no length", Post("", "123"), 411},
           Case{"another encoding", Post("Transfer-Encoding: gzip\r\n", "123"), 501},
           Case{"two encodings", Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
           Case{"no encoding by name", Post("Transfer-Encoding: identity\r\n", "123"), 501},
           Case{"an encoding that looks like chunked", Post("Transfer-Encoding: xchunked\r\n", ""),
                501},
           Case{"chunked twice",
                Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
                400},
           Case{"chunks of HTTP/1.0",
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
           Case{"two hosts", Get("Host: a\r\nHost: a\r\n"), 400},
           Case{"two keys", Get("Authorization: a\r\nauthorization: b\r\n"), 400},
           Case{"two content encodings",
                Get("Content-Encoding: identity\r\nContent-Encoding: gzip\r\n"), 400},
           Case{"a host in the first line and another one",
                "GET http://localhost/ HTTP/1.1\r\nHost: evil\r\n\r\n", 400},
           Case{"a host in the first line and none", "GET http://localhost/ HTTP/1.1\r\n\r\n", 400},
           Case{"two origins", Get("Origin: a\r\nOrigin: b\r\n"), 400},
           Case{"a length behind chunks", Chunks("0\r\nContent-Length: 5\r\n\r\n"), 400},
           Case{"an encoding behind chunks", Chunks("0\r\nTransfer-Encoding: chunked\r\n\r\n"),
                400},
       }) {
    Check(each);
  }
}

TEST(HttpSyntaxTest, ChunksAreAsLongAsTheySay) {
  for (const Case& each : {
           Case{"an empty body", Chunks("0\r\n\r\n"), 200},
           Case{"an end that is missing", Chunks("3\r\n1234\r\n0\r\n\r\n"), 400},
           Case{"an end of LF", Chunks("3\r\n123\n0\r\n\r\n"), 400},
           Case{"an end of CR", Chunks("3\r\n123\r0\r\n\r\n"), 400},
           Case{"more than it says", Chunks("3\r\n123XX\r\n0\r\n\r\n"), 400},
           Case{"less than it says", Chunks("5\r\n123\r\n0\r\n\r\n"), 400},
           Case{"less, and the end of the connection", Chunks("5\r\n12"), kGone},
           Case{"no last chunk", Chunks("3\r\n123\r\n"), kGone},
           Case{"no end of the last chunk", Chunks("3\r\n123\r\n0\r\n"), kGone},
           Case{"no size, and nothing more", Chunks("x"), 400},
           Case{"no size in a whole line", Chunks("z\r\n"), 400},
           Case{"no size behind a chunk", Chunks("3\r\n123\r\nx"), 400},
           Case{"more than a size", Chunks("3x"), 400},
           Case{"CR alone behind a size", Chunks("3\rx"), 400},
           Case{"no end, and nothing more", Chunks("3\r\n123x"), 400},
           Case{"half of an end", Chunks("3\r\n123\rx"), 400},
           Case{"a size that goes on", Chunks("3\r\n123\r\n00"), kGone},
           Case{"no size", Chunks("\r\n123\r\n0\r\n\r\n"), 400},
           Case{"base 16 with its mark", Chunks("0x3\r\n123\r\n0\r\n\r\n"), 400},
           Case{"a sign", Chunks("+3\r\n123\r\n0\r\n\r\n"), 400},
           Case{"a negative size", Chunks("-3\r\n123\r\n0\r\n\r\n"), 400},
           Case{"a space behind the size", Chunks("3 \r\n123\r\n0\r\n\r\n"), 400},
           Case{"a space before the size", Chunks(" 3\r\n123\r\n0\r\n\r\n"), 400},
           Case{"a size of 2^64-1", Chunks("ffffffffffffffff\r\n123\r\n0\r\n\r\n"), 413},
           Case{"a size of 2^64 and 3", Chunks("10000000000000003\r\n123\r\n0\r\n\r\n"), 400},
           Case{"a size of many zeros", Chunks("00000000000000000003\r\n123\r\n0\r\n\r\n"), 200},
           Case{"extensions", Chunks("3;a;b=c;d=\"e\"\r\n123\r\n0;z\r\n\r\n"), 200},
           Case{"an extension with LF", Chunks("3;a\nb\r\n123\r\n0\r\n\r\n"), 400},
           Case{"an extension with a zero", Chunks("3;a\0b\r\n123\r\n0\r\n\r\n"s), 400},
           Case{"a header behind them that is none", Chunks("0\r\nX y\r\n\r\n"), 400},
           Case{"a header behind them with a zero", Chunks("0\r\nX: \0\r\n\r\n"s), 400},
       }) {
    Check(each);
  }
}

TEST(HttpSyntaxTest, LinesAreAsTheStandardSays) {
  for (const Case& each : {
           Case{"LF alone", "GET / HTTP/1.1\nHost: h\n\n", 400},
           Case{"LF alone in a header", "GET / HTTP/1.1\r\nHost: h\n\r\n", 400},
           Case{"LF alone at the end", "GET / HTTP/1.1\r\nHost: h\r\n\n", 400},
           Case{"CR alone", Get("Host: h\rX: y\r\n"), 400},
           Case{"two CR", "GET / HTTP/1.1\r\r\nHost: h\r\n\r\n", 400},
           Case{"a folded line", Get("Host: h\r\n evil\r\n"), 400},
           Case{"a folded line with a tab", Get("Host: h\r\n\tevil\r\n"), 400},
           Case{"a first header line with a space", Get(" Host: h\r\n"), 400},
           Case{"a space before the colon", Get("Host : h\r\n"), 400},
           Case{"no name", Get(": h\r\n"), 400},
           Case{"no colon", Get("Host\r\n"), 400},
           Case{"a name with a bracket", Get("Ho[st: h\r\n"), 400},
           Case{"a zero in a value", Get("Host: localhost\0evil.com\r\n"s), 400},
           Case{"a zero in front of a value", Get("Host: \0localhost\r\n"s), 400},
           Case{"a zero behind a value", Get("Host: localhost\0\r\n"s), 400},
           Case{"a zero in a name", Get("Ho\0st: h\r\n"s), 400},
           Case{"a control character", Get("Host: h\x01\r\n"), 400},
           Case{"an escape", Get("X: \x1b[2J\r\n"), 400},
           Case{"a delete", Get("Host: h\x7f\r\n"), 400},
           Case{"a tab", Get("X: a\tb\r\n"), 200},
           Case{"bytes above ASCII", Get("X: \xc3\xa4\xff\r\n"), 200},
           Case{"a zero in the path", "GET /a\0b HTTP/1.1\r\n\r\n"s, 400},
           Case{"a zero in the path, encoded", "GET /a%00b HTTP/1.1\r\n\r\n", 400},
           Case{"an end of line in the path, encoded", "GET /a%0d%0aX:y HTTP/1.1\r\n\r\n", 400},
           Case{"a bad encoding", "GET /a%zz HTTP/1.1\r\n\r\n", 400},
           Case{"half an encoding", "GET /a%4 HTTP/1.1\r\n\r\n", 400},
           Case{"a signed encoding", "GET /a%+1 HTTP/1.1\r\n\r\n", 400},
           Case{"a control character in the path", "GET /a\x01 HTTP/1.1\r\n\r\n", 400},
           Case{"a space in the path", "GET /a b HTTP/1.1\r\n\r\n", 400},
           Case{"two spaces", "GET  / HTTP/1.1\r\n\r\n", 400},
           Case{"tabs", "GET\t/\tHTTP/1.1\r\n\r\n", 400},
           Case{"another host's path", "GET http://evil.com/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
           Case{"no path", "OPTIONS * HTTP/1.1\r\n\r\n", 400},
           Case{"HTTP/0.9", "GET /\r\n\r\n", 400},
           Case{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
           Case{"HTTP/9.9", "GET / HTTP/9.9\r\n\r\n", 400},
           Case{"a version in small letters", "GET / http/1.1\r\n\r\n", 400},
           Case{"something behind the version", "GET / HTTP/1.1 x\r\n\r\n", 400},
           Case{"garbage", "garbage\r\n\r\n", 400},
           Case{"TLS", "\x16\x03\x01\x02\x01\x01", 400},
           Case{"an empty line first", "\r\nGET / HTTP/1.1\r\n\r\n", 200},
           Case{"two empty lines", "\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400},
           Case{"CR first", "\rGET / HTTP/1.1\r\n\r\n", 400},
           Case{"nothing", "", kGone},
           Case{"half a line", "GET / HT", kGone},
           Case{"half a header", "GET / HTTP/1.1\r\nHost: h\r\n", kGone},
           Case{"half a body", Post("Content-Length: 3\r\n", "12"), kGone},
           Case{"another expectation", Post("Content-Length: 3\r\nExpect: miracles\r\n", "123"),
                417},
       }) {
    Check(each);
  }
}

TEST(HttpSyntaxTest, WhatFollowsIsTheNextRequest) {
  for (const std::size_t piece : {kAtOnce, std::size_t{1}}) {
    Incoming incoming(Chunks("1\r\na\r\n0\r\n\r\n") + "\r\n" + Post("Content-Length: 2\r\n", "bc") +
                          "GET /last HTTP/1.1\r\nConnection: close\r\n\r\n",
                      piece);
    RequestReader reader(incoming.socket(), kHttpBodyBytesMax);
    HttpRequest request;
    EXPECT_EQ(Outcome(reader.ReadHeader(request)), kTaken);
    EXPECT_TRUE(reader.keeps_connection());
    EXPECT_EQ(Outcome(reader.ReadBody()), kTaken);
    EXPECT_EQ(request.body, "a");
    EXPECT_EQ(Outcome(reader.ReadHeader(request)), kTaken);
    EXPECT_EQ(Outcome(reader.ReadBody()), kTaken);
    EXPECT_EQ(request.body, "bc");
    EXPECT_EQ(Outcome(reader.ReadHeader(request)), kTaken);
    EXPECT_FALSE(reader.has_body());
    EXPECT_FALSE(reader.keeps_connection());
    EXPECT_EQ(request.path, "/last");
    EXPECT_EQ(Outcome(reader.ReadHeader(request)), kGone);
  }
}

TEST(HttpSyntaxTest, OnlyHttp11KeepsItsConnection) {
  const std::pair<const char*, bool> cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", true},
      {"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", false},
      {"GET / HTTP/1.1\r\nConnection: a, close\r\n\r\n", false},
      {"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", true},
      {"GET / HTTP/1.0\r\n\r\n", false},
      {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false},
  };
  for (const auto& [bytes, keeps] : cases) {
    Incoming incoming(bytes, kAtOnce);
    RequestReader reader(incoming.socket(), kHttpBodyBytesMax);
    HttpRequest request;
    EXPECT_EQ(Outcome(reader.ReadHeader(request)), kTaken) << bytes;
    EXPECT_EQ(reader.keeps_connection(), keeps) << bytes;
  }
}

}  // namespace
}  // namespace cairn::compute
