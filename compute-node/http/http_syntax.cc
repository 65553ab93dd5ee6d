#include "compute-node/http/http_syntax.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <absl/strings/ascii.h>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/status.hpp>

#include "compute-node/http/api_error.h"

namespace cairn::compute {
namespace {

namespace beast = boost::beast;

// A chunk's own line, or what follows the last chunk; which of them it is shows when it has ended.
constexpr std::size_t kChunkLineBytesMax = 16 << 10;
constexpr std::size_t kChunkWaitBytesMax = 2 * kChunkLineBytesMax;
constexpr std::string_view kLineEnd = "\r\n";
// The shortest rest of a body in chunks, "0\r\n\r\n": Beast 1.74 asserts that it gets so much.
constexpr std::size_t kChunkedRestBytesMin = 5;

HttpRead Refused(HttpReply refusal) { return {HttpRead::Kind::kRefused, std::move(refusal)}; }

template <typename... Args>
HttpRead Malformed(fmt::format_string<Args...> format, Args&&... args) {
  return Refused(ErrorReply(InvalidArgument("this is no HTTP request that can be read: {}",
                                            fmt::format(format, std::forward<Args>(args)...))));
}

HttpRead TooLong(int status, std::string_view what, std::int64_t bytes_max) {
  return Refused(
      ErrorReply(status, InvalidArgument("{} is too long: at most {} bytes", what, bytes_max)));
}

HttpRead LineTooLong() {
  return TooLong(413, "a line between chunks", std::int64_t{kChunkLineBytesMax});
}

// Finds the end of a header, line by line, and what in it no parser need see.
class HeaderScanner {
 public:
  // Looks at what is new behind `text` of the last call; nullopt: there is more to come.
  std::optional<HttpRead> Scan(std::string_view text) {
    for (std::size_t end = text.find('\n', position_); end != std::string_view::npos;
         end = text.find('\n', position_)) {
      position_ = end + 1;
      if (end == line_begin_ || text[end - 1] != '\r') {
        return Malformed("a line must end with CR LF, not LF alone");
      }
      if (std::optional<HttpRead> ended =
              TakeLine(text.substr(line_begin_, end - 1 - line_begin_))) {
        return ended;
      }
      line_begin_ = position_;
    }
    position_ = text.size();
    return CheckLengths();
  }
  std::size_t header_bytes() const { return position_; }

 private:
  std::optional<HttpRead> TakeLine(std::string_view line) {
    if (std::optional<HttpRead> too_long = CheckLengths()) return too_long;
    if (header_begin_ == 0) {
      header_begin_ = position_;
      return std::nullopt;
    }
    if (line.empty()) return HttpRead();
    // What follows would belong to the line before, or not.
    if (line[0] == ' ' || line[0] == '\t') return Malformed("a header line begins with a space");
    return std::nullopt;
  }

  std::optional<HttpRead> CheckLengths() const {
    const auto bytes = static_cast<std::int64_t>(position_ - header_begin_);
    if (header_begin_ == 0 && bytes > kHttpFirstLineBytesMax) {
      return TooLong(414, "the first line of the request", kHttpFirstLineBytesMax);
    }
    if (header_begin_ != 0 && bytes > kHttpHeaderBytesMax) {
      return TooLong(413, "the header of the request", kHttpHeaderBytesMax);
    }
    return std::nullopt;
  }

  std::size_t position_ = 0;  // what is before it was looked at
  std::size_t line_begin_ = 0;
  std::size_t header_begin_ = 0;  // behind the first line; 0: that has no end yet
};

// "/a%20b?q" is "/a b"; nullopt for what is no path.
std::optional<std::string> DecodePath(std::string_view target) {
  target = target.substr(0, target.find('?'));
  if (!target.starts_with('/')) return std::nullopt;
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    char c = target[i];
    if (c == '%') {
      if (i + 2 >= target.size()) return std::nullopt;
      unsigned value = 0;
      const char* digits = target.data() + i + 1;
      const auto parsed = std::from_chars(digits, digits + 2, value, 16);
      if (parsed.ec != std::errc() || parsed.ptr != digits + 2) return std::nullopt;
      c = static_cast<char>(value);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') return std::nullopt;
    path += c;
  }
  return path;
}

constexpr std::string_view kAbsoluteStart = "http://";

// "http://localhost/health" is "/health", as what is made for proxies writes it; nullopt for one of
// another host.
std::optional<std::string> OriginForm(const std::string& target, std::string_view host) {
  if (!EqualsIgnoreCase(target.substr(0, kAbsoluteStart.size()), kAbsoluteStart)) return target;
  const std::string_view rest = std::string_view(target).substr(kAbsoluteStart.size());
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?"));
  if (!EqualsIgnoreCase(authority, host)) return std::nullopt;
  const std::string_view path = rest.substr(authority.size());
  return fmt::format("{}{}", path.starts_with('/') ? "" : "/", path);
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Beast refuses two lengths that differ and a length beside chunks. It takes one that is said
// twice, and leaves encodings to others; nor does it know who reads which header.
HttpRead AdmitFraming(const HttpRequest& request, bool is_http10) {
  for (const char* name :
       {"Host", "Content-Length", "Transfer-Encoding", "Content-Type", "Content-Encoding",
        "Authorization", "Origin", "Sec-Fetch-Site", "Expect"}) {
    if (request.HeaderCount(name) > 1) return Malformed("its header has {} twice", name);
  }
  const bool has_length = request.HeaderCount("Content-Length") != 0;
  const bool has_encoding = request.HeaderCount("Transfer-Encoding") != 0;
  const std::string_view length = request.Header("Content-Length");
  if (has_length && !IsNumber(length)) return Malformed("its Content-Length is no number");
  const std::string_view encoding = request.Header("Transfer-Encoding");
  if (has_encoding && is_http10) return Malformed("HTTP/1.0 has no Transfer-Encoding");
  if (has_encoding && !EqualsIgnoreCase(encoding, "chunked")) {
    return Refused(ErrorReply(
        501, Unimplemented("Transfer-Encoding is '{}': only chunked is understood", encoding)));
  }
  if (!has_length && !has_encoding && request.method == "POST") {
    return Refused(ErrorReply(411, InvalidArgument("the request does not say how long its body is: "
                                                   "send Content-Length")));
  }
  return {};
}

// Whether these bytes may go on as the line before a chunk, whose size Beast reads only when the
// line has ended. The end of the chunk before comes first, if there was one.
bool MayBeginChunk(std::string_view bytes, bool follows_chunk) {
  const auto skip_end = [&] {
    const std::size_t count = std::min(bytes.size(), kLineEnd.size());
    const bool fits = bytes.substr(0, count) == kLineEnd.substr(0, count);
    bytes.remove_prefix(count);
    return fits;
  };
  if (follows_chunk && !skip_end()) return false;
  if (bytes.empty()) return true;
  const std::size_t digits =
      std::min(bytes.find_first_not_of("0123456789abcdefABCDEF"), bytes.size());
  if (digits == 0) return false;
  bytes.remove_prefix(digits);
  return bytes.starts_with(';') || skip_end();
}

// How far ahead a body claims its memory.
constexpr std::int64_t kClaimStepBytes = 64 << 10;

}  // namespace

// Beast's parser with our request as what it fills.
class RequestReader::Parser final : public beast::http::basic_parser<true> {
 public:
  Parser(HttpRequest& request, std::int64_t body_bytes_max)
      : request_(request), body_bytes_max_(body_bytes_max) {
    header_limit(kHttpFirstLineBytesMax + kHttpHeaderBytesMax + 1);  // HeaderScanner is stricter
    body_limit(static_cast<std::uint64_t>(body_bytes_max));
  }

  const std::string& target() const { return target_; }
  int version() const { return version_; }
  bool expects_chunks() const { return chunked() && !is_done(); }
  // Whether `bytes`, which it has not taken, may be the next ones of a body in chunks.
  bool MayFollow(std::string_view bytes) const {
    if (bytes.size() <= chunk_bytes_left_) return true;
    return MayBeginChunk(bytes.substr(chunk_bytes_left_), has_chunk_);
  }
  bool has_long_line() const { return has_long_line_; }
  // Of the lines behind the last chunk, which end where put() has taken everything.
  std::size_t TrailerBytes(const char* end) const {
    const bool has_trailer = is_done() && trailer_begin_ != nullptr;
    return has_trailer ? static_cast<std::size_t>(end - trailer_begin_) - kLineEnd.size() : 0;
  }
  // Why there is no memory for the body, or OK.
  const absl::Status& claim_status() const { return claim_status_; }

 private:
  static std::string ToString(beast::string_view text) { return {text.data(), text.size()}; }

  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target,
                       int version, beast::error_code&) override {
    request_.method = ToString(method);
    target_ = ToString(target);
    version_ = version;
  }
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value,
                     beast::error_code&) override {
    // Those behind the last chunk were not there when the request was admitted.
    if (has_header_) return;
    request_.headers.emplace_back(ToString(name), ToString(value));
  }
  void on_header_impl(beast::error_code&) override { has_header_ = true; }
  std::size_t on_body_impl(beast::string_view piece, beast::error_code& error) override {
    const auto bytes = static_cast<std::int64_t>(request_.body.size() + piece.size());
    if (bytes > claimed_for_bytes_) {
      claimed_for_bytes_ = std::min(bytes + kClaimStepBytes, std::max(bytes, body_bytes_max_));
      claim_status_ = request_.memory.Resize(RequestMemoryBytes(claimed_for_bytes_));
    }
    if (!claim_status_.ok()) {
      error = beast::errc::make_error_code(beast::errc::not_enough_memory);
      return 0;
    }
    request_.body.append(piece.data(), piece.size());
    return piece.size();
  }
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view piece,
                                 beast::error_code& error) override {
    const std::size_t taken = on_body_impl(piece, error);
    chunk_bytes_left_ -= taken;
    return taken;
  }
  void on_response_impl(int, beast::string_view, int, beast::error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, beast::error_code&) override {}
  void on_chunk_header_impl(std::uint64_t bytes, beast::string_view extensions,
                            beast::error_code& error) override {
    has_chunk_ = true;
    chunk_bytes_left_ = bytes;
    if (bytes == 0) trailer_begin_ = extensions.data() + extensions.size() + kLineEnd.size();
    has_long_line_ = extensions.size() > kChunkLineBytesMax;
    if (has_long_line_) error = beast::errc::make_error_code(beast::errc::value_too_large);
  }
  void on_finish_impl(beast::error_code&) override {}

  HttpRequest& request_;
  const std::int64_t body_bytes_max_;
  std::string target_;
  int version_ = 0;
  bool has_header_ = false;
  bool has_long_line_ = false;
  bool has_chunk_ = false;
  std::uint64_t chunk_bytes_left_ = 0;   // of the last one
  const char* trailer_begin_ = nullptr;  // in what put() was given
  std::int64_t claimed_for_bytes_ = kRequestFreeBytes;
  absl::Status claim_status_;
};

RequestReader::RequestReader(HttpSocket& socket, std::int64_t body_bytes_max)
    : socket_(socket), body_bytes_max_(std::min(body_bytes_max, kHttpBodyBytesMax)) {}
RequestReader::~RequestReader() = default;

HttpRead RequestReader::ReadMore(std::string_view part) {
  switch (socket_.Read(pending_)) {
    case HttpSocket::Got::kBytes:
      return {};
    case HttpSocket::Got::kTimeUp:
      return Refused(ErrorReply(
          408,
          InvalidArgument("the {} of the request did not come in time: within {} s, without a "
                          "pause of {} s",
                          part, (part == "body" ? kHttpBodyTimeMax : kHttpHeaderTimeMax).count(),
                          kHttpBodyPauseMax.count())));
    case HttpSocket::Got::kTooMuch:
      return BodyTooLong();
    case HttpSocket::Got::kEnd:
      break;
  }
  return {HttpRead::Kind::kGone, {}};
}

HttpRead RequestReader::BodyTooLong() const {
  return TooLong(413,
                 body_bytes_max_ == kHttpBodyBytesMax
                     ? "the body of the request"
                     : "for request_memory_bytes of the daemon's configuration the request's body",
                 body_bytes_max_);
}

HttpRead RequestReader::FindHeader(std::size_t& header_bytes) {
  socket_.Allow(kHttpFirstLineBytesMax + kHttpHeaderBytesMax + kHttpReadBytesMax,
                kHttpHeaderTimeMax, kHttpHeaderTimeMax);
  while (pending_.empty() || pending_ == "\r") {
    HttpRead more = ReadMore("header");
    if (more.kind != HttpRead::Kind::kDone) return more;
  }
  // Some clients end a body with a line of their own.
  if (pending_.starts_with("\r\n")) pending_.erase(0, 2);
  // Such as one that begins with TLS would wait for an answer to its first bytes.
  if (!pending_.empty() && !absl::ascii_isalpha(static_cast<unsigned char>(pending_[0]))) {
    return Malformed("it begins with no method");
  }
  HeaderScanner scanner;
  for (;;) {
    if (const std::optional<HttpRead> found = scanner.Scan(pending_)) {
      header_bytes = scanner.header_bytes();
      return *found;
    }
    HttpRead more = ReadMore("header");
    if (more.kind != HttpRead::Kind::kDone) return more;
  }
}

HttpRead RequestReader::ReadHeader(HttpRequest& request) {
  request.headers.clear();
  request.body.clear();
  awaits_continue_ = false;
  parser_ = std::make_unique<Parser>(request, body_bytes_max_);
  std::size_t header_bytes = 0;
  HttpRead read = FindHeader(header_bytes);
  if (read.kind != HttpRead::Kind::kDone) return read;
  beast::error_code error;
  parser_->put(boost::asio::const_buffer(pending_.data(), header_bytes), error);
  if (error == beast::http::error::body_limit) return BodyTooLong();
  if (error || !parser_->is_header_done()) return Malformed("{}", error.message());
  pending_.erase(0, header_bytes);
  read = AdmitFraming(request, is_http10());
  if (read.kind != HttpRead::Kind::kDone) return read;
  const std::optional<std::string> target = OriginForm(parser_->target(), request.Header("Host"));
  if (!target.has_value()) return Malformed("its first line and its Host header differ");
  const std::optional<std::string> path = DecodePath(*target);
  if (!path.has_value()) return Malformed("its first line has no path that can be decoded");
  if (std::ssize(*path) > kHttpPathBytesMax) return TooLong(414, "the path", kHttpPathBytesMax);
  request.path = *path;
  const std::string_view expected = request.Header("Expect");
  awaits_continue_ = has_body() && !is_http10() && !expected.empty();
  if (awaits_continue_ && !EqualsIgnoreCase(expected, "100-continue")) {
    return Refused(ErrorReply(
        417, InvalidArgument("Expect is '{}': only 100-continue is understood", expected)));
  }
  return {};
}

bool RequestReader::has_body() const { return !parser_->is_done(); }
bool RequestReader::keeps_connection() const { return parser_->keep_alive() && !is_http10(); }
bool RequestReader::is_http10() const { return parser_->version() < 11; }
bool RequestReader::awaits_continue() const { return awaits_continue_ && pending_.empty(); }

HttpRead RequestReader::ReadBody() {
  // What chunks say about themselves counts too.
  socket_.Allow(body_bytes_max_ + kHttpReadBytesMax, kHttpBodyTimeMax, kHttpBodyPauseMax);
  parser_->eager(true);
  bool needs_more = false;
  while (!parser_->is_done()) {
    const std::size_t least = parser_->expects_chunks() ? kChunkedRestBytesMin : 1;
    if (needs_more || pending_.size() < least) {
      if (pending_.size() > kChunkWaitBytesMax) return LineTooLong();
      if (parser_->expects_chunks() && !parser_->MayFollow(pending_)) {
        return Malformed("a chunk of its body does not begin with its size");
      }
      HttpRead more = ReadMore("body");
      if (more.kind != HttpRead::Kind::kDone) return more;
      needs_more = false;
      continue;
    }
    beast::error_code error;
    const std::size_t taken = parser_->put(boost::asio::buffer(pending_), error);
    const std::size_t trailer_bytes = parser_->TrailerBytes(pending_.data() + taken);
    pending_.erase(0, taken);
    if (trailer_bytes > kChunkLineBytesMax) return LineTooLong();
    if (!parser_->claim_status().ok()) return Refused(ErrorReply(parser_->claim_status()));
    if (parser_->has_long_line()) return LineTooLong();
    if (error == beast::http::error::body_limit) return BodyTooLong();
    needs_more = error == beast::http::error::need_more;
    if (error && !needs_more) return Malformed("{}", error.message());
  }
  return {};
}

bool WriteContinue(HttpSocket& socket) { return socket.Write("HTTP/1.1 100 Continue\r\n\r\n"); }

namespace {

std::string HeaderText(const HttpReply& reply, const ReplyForm& form) {
  const beast::string_view reason =
      beast::http::obsolete_reason(beast::http::int_to_status(static_cast<unsigned>(reply.status)));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", reply.status,
                                 std::string_view(reason.data(), reason.size()),
                                 reply.stream ? "text/event-stream" : "application/json");
  for (const auto& [name, value] : reply.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!reply.stream) {
    text += fmt::format("Content-Length: {}\r\n", reply.body.size());
  } else {
    text += "Cache-Control: no-cache\r\n";
    // To others the end of the connection is the stream's.
    if (!form.is_http10) text += "Transfer-Encoding: chunked\r\n";
  }
  if (form.keeps_connection) {
    text += fmt::format("Keep-Alive: timeout={}, max={}\r\n\r\n", form.idle_time_max.count(),
                        form.requests_left);
  } else {
    text += "Connection: close\r\n\r\n";
  }
  return text;
}

}  // namespace

bool WriteReply(const HttpReply& reply, const ReplyForm& form, HttpSocket& socket) {
  std::string text = HeaderText(reply, form);
  if (!reply.stream) {
    if (!form.is_head) text += reply.body;
    return socket.Write(text);
  }
  if (!socket.Write(text) || form.is_head) return false;
  const HttpWrite write = [&form, &socket](std::string_view piece) {
    if (piece.empty()) return true;
    if (form.is_http10) return socket.Write(piece);
    return socket.Write(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
  };
  if (!reply.stream(write, [&socket] { return socket.connected(); })) return false;
  return form.is_http10 || socket.Write("0\r\n\r\n");
}

}  // namespace cairn::compute
