// HTTP/1.1's syntax: requests from the bytes of a connection, and the bytes of replies.
//
// Strict, because what this reads differently from a proxy in front of it would be the next
// request: lines end with CR LF, nothing is folded, no control character is in a header, where a
// body ends is said once and without doubt, chunks are as long as they say. What is none of that is
// refused, and ends the connection. Boost.Beast does most of it; what it takes and this does not is
// in http_syntax.cc.
//
// Limits:     the constants below.
// Threading:  one thread.
// Blocking:   as HttpSocket.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "compute-node/http/http_socket.h"
#include "compute-node/http/http_types.h"

namespace cairn::compute {

// The first line, and the path in it when it is decoded.
inline constexpr std::int64_t kHttpFirstLineBytesMax = 8 << 10;
inline constexpr std::int64_t kHttpPathBytesMax = 1024;
// All header lines of a request, with their ends.
inline constexpr std::int64_t kHttpHeaderBytesMax = 16 << 10;
// A prompt of a million tokens fits, as text or as numbers.
inline constexpr std::int64_t kHttpBodyBytesMax = 16 << 20;
// From the first byte of a request to the end of its header, and then of its body.
inline constexpr std::chrono::seconds kHttpHeaderTimeMax{10};
inline constexpr std::chrono::seconds kHttpBodyTimeMax{60};
// How long a body may pause.
inline constexpr std::chrono::seconds kHttpBodyPauseMax{10};

// How reading a part of a request ended.
struct HttpRead {
  enum class Kind {
    kDone,
    kGone,     // the client, or it had nothing to ask
    kRefused,  // `refusal` says why; nothing of the connection can be read any more
  };
  Kind kind = Kind::kDone;
  HttpReply refusal;
};

class RequestReader {
 public:
  // Borrows `socket`. Bodies have at most `body_bytes_max`, and claim memory from the request's own
  // claim as they come.
  RequestReader(HttpSocket& socket, std::int64_t body_bytes_max);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Whether bytes of the next request are here already.
  bool has_bytes() const { return !pending_.empty(); }
  // Fills all of `request` but its body; borrows it until the next one.
  HttpRead ReadHeader(HttpRequest& request);
  // Behind ReadHeader: what the header said.
  bool has_body() const;
  bool keeps_connection() const;
  bool is_http10() const;
  // Whether the client waits for a word before it sends the body.
  bool awaits_continue() const;
  // Behind ReadHeader, once. Without it the connection cannot be read any further if has_body().
  HttpRead ReadBody();

 private:
  class Parser;

  HttpRead FindHeader(std::size_t& header_bytes);
  // Waits for more; kDone: there is more.
  HttpRead ReadMore(std::string_view part);

  HttpRead BodyTooLong() const;

  HttpSocket& socket_;
  const std::int64_t body_bytes_max_;
  std::string pending_;  // read, not parsed
  std::unique_ptr<Parser> parser_;
  bool awaits_continue_ = false;
};

// What a reply's connection is like.
struct ReplyForm {
  bool is_http10 = false;
  bool is_head = false;  // to a HEAD request: without its body
  bool keeps_connection = true;
  int requests_left = 0;  // on the connection
  std::chrono::seconds idle_time_max{0};
};

// Writes all of it. False: the client is gone or does not read, or the stream could not be written
// to its end.
bool WriteReply(const HttpReply& reply, const ReplyForm& form, HttpSocket& socket);
// The client may send its body.
bool WriteContinue(HttpSocket& socket);

}  // namespace cairn::compute
