#include "compute-node/http/http_server.h"

#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <absl/strings/match.h>

#include "common/base/thread.h"
#include "common/log/log.h"
#include "compute-node/http/api_error.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kListenBacklog = 64;
// How soon accepting is tried again when the process has no more file descriptors.
constexpr std::chrono::milliseconds kAcceptRetryInterval{100};
// What a client still sends when its reply is already decided is read and dropped for so long: a
// socket that is closed with unread bytes takes the reply away from the client.
constexpr std::chrono::milliseconds kLingerTimeMax{1000};
constexpr std::int64_t kReadBufferBytes = 16 << 10;

// Polls until `deadline`; 0 when the time is up, else what happened.
short Poll(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (count > 0) return entry.revents;
    if (count == 0 || errno != EINTR) return 0;
  }
}

// The socket as the library reads and writes it, with the limits of the request in progress.
class LimitedStream final : public httplib::Stream {
 public:
  explicit LimitedStream(int socket) : socket_(socket), buffer_(kReadBufferBytes) {}

  // Whether a first byte came.
  bool WaitForRequest() {
    return begin_ < end_ ||
           ((Poll(socket_, POLLIN, Clock::now() + kHttpIdleTimeMax) & POLLIN) != 0);
  }
  void Allow(std::int64_t bytes, std::chrono::milliseconds time) {
    left_bytes_ = bytes;
    deadline_ = Clock::now() + time;
  }
  // A request was longer than what it was allowed.
  bool over_limit() const { return over_limit_; }
  bool connected() const {
    const short happened = Poll(socket_, POLLRDHUP, Clock::time_point());
    return (happened & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
  }
  void Linger() {
    ::shutdown(socket_, SHUT_WR);
    Allow(std::numeric_limits<std::int64_t>::max(), kLingerTimeMax);
    do {
      begin_ = end_;
    } while (Fill());
  }

  bool is_readable() const override { return begin_ < end_ || connected(); }
  bool is_writable() const override { return connected(); }

  ssize_t read(char* out, std::size_t size) override {
    if (begin_ == end_ && !Fill()) return -1;
    const std::size_t count = std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, out);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* data, std::size_t size) override {
    const Clock::time_point deadline = Clock::now() + kHttpWriteTimeMax;
    for (;;) {
      const ssize_t sent = ::send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) return sent;
      if (errno == EINTR) continue;
      if (errno != EAGAIN || (Poll(socket_, POLLOUT, deadline) & POLLOUT) == 0) return -1;
    }
  }

  // Nobody asks who a loopback client is.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  // The library refuses numbers that select() cannot take; nothing here selects.
  socket_t socket() const override { return 0; }

 private:
  // Reads what is there; false at the end, when the time is up or at the limit.
  bool Fill() {
    if (left_bytes_ <= 0) {
      over_limit_ = true;
      return false;
    }
    // Also of a client that always has more to send.
    if (Clock::now() >= deadline_) return false;
    if ((Poll(socket_, POLLIN, deadline_) & (POLLIN | POLLHUP)) == 0) return false;
    const auto size = std::min<std::int64_t>(left_bytes_, std::ssize(buffer_));
    const ssize_t got =
        ::recv(socket_, buffer_.data(), static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (got <= 0) return false;
    left_bytes_ -= got;
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
    return true;
  }

  const int socket_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::int64_t left_bytes_ = 0;
  Clock::time_point deadline_;
  bool over_limit_ = false;
};

// `chunked`: whether the client knows chunks; to others the end of the connection is the stream's.
void FillResponse(HttpReply reply, bool chunked, LimitedStream& stream,
                  httplib::Response& response) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) response.set_header(name, value);
  if (!reply.stream) {
    response.set_content(reply.body, "application/json");
    return;
  }
  response.set_header("Cache-Control", "no-cache");
  auto provider = [write_all = std::move(reply.stream), &stream](std::size_t,
                                                                 httplib::DataSink& sink) {
    const bool written = write_all(
        [&sink](std::string_view piece) { return sink.write(piece.data(), piece.size()); },
        [&stream] { return stream.connected(); });
    if (written) sink.done();
    return written;
  };
  if (chunked) {
    response.set_chunked_content_provider("text/event-stream", std::move(provider));
  } else {
    response.set_content_provider("text/event-stream", std::move(provider));
  }
}

// A whole number without sign, as the library's own parser does not insist on.
bool IsLength(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Where the body of a request ends must be said once and without doubt: this daemon and a proxy in
// front of it could otherwise take different bytes for the next request.
HttpReply AdmitFraming(const httplib::Request& request) {
  const bool has_length = request.has_header("Content-Length");
  const bool has_encoding = request.has_header("Transfer-Encoding");
  if (request.get_header_value_count("Host") > 1 ||
      request.get_header_value_count("Content-Length") > 1 ||
      request.get_header_value_count("Transfer-Encoding") > 1 || (has_length && has_encoding)) {
    return ErrorReply(InvalidArgument("the request's header says the same thing twice"));
  }
  const std::string length = request.get_header_value("Content-Length");
  if (has_length && !IsLength(length)) {
    return ErrorReply(InvalidArgument("Content-Length is '{}': it must be a number", length));
  }
  const std::string encoding = request.get_header_value("Transfer-Encoding");
  if (has_encoding && !absl::EqualsIgnoreCase(encoding, "chunked")) {
    return ErrorReply(
        501, Unimplemented("Transfer-Encoding is '{}': only chunked is understood", encoding));
  }
  if (!has_length && !has_encoding && request.method == "POST") {
    return ErrorReply(411, InvalidArgument("the request does not say how long its body is: send "
                                           "Content-Length"));
  }
  return {};
}

// One connection: the library's parser and writer over a LimitedStream. Its sockets, threads and
// routes are not used: every request goes to the one handler.
class Connection final : private httplib::Server {
 public:
  Connection(int socket, HttpHandler& handler) : stream_(socket), handler_(handler) {
    // Without a listening socket the library believes that it is being stopped.
    svr_sock_ = socket;
    set_keep_alive_timeout(kHttpIdleTimeMax.count());
    set_keep_alive_max_count(static_cast<std::size_t>(kHttpRequestsMax));
    set_payload_max_length(static_cast<std::size_t>(kHttpBodyBytesMax));
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      // Those two may have a body, which is read before their handler is asked.
      if (!refused_.has_value() && request.method == "POST") return HandlerResponse::Unhandled;
      Answer(response);
      return HandlerResponse::Handled;
    });
    // BeginRequest makes every path this one: the library's routes are regular expressions, whose
    // matching takes stack for each character.
    Post("/", [this](const httplib::Request& request, httplib::Response& response) {
      request_.body = request.body;
      Answer(response);
    });
    set_expect_100_continue_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!refused_.has_value()) return 100;
      Answer(response);
      return response.status;
    });
    set_error_handler(Handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      // The library gave up, perhaps in the middle of a body.
      close_after_ = true;
      response.set_header("Connection", "close");
      FillResponse(OwnError(response.status), chunked_, stream_, response);
    }));
    set_exception_handler([this](const httplib::Request&, httplib::Response& response, auto) {
      FillResponse(ErrorReply(Internal("the request could not be handled")), chunked_, stream_,
                   response);
    });
  }

  void Run() {
    bool closed = false;
    for (int left = kHttpRequestsMax; !closed && left > 0 && stream_.WaitForRequest(); --left) {
      stream_.Allow(kHttpHeaderBytesMax, kHttpHeaderTimeMax);
      refused_.reset();
      close_after_ = false;
      const auto begin = [this](httplib::Request& request) { BeginRequest(request); };
      closed = !process_request(stream_, /*close_connection=*/left == 1, closed, begin) || closed ||
               close_after_;
    }
    stream_.Linger();
  }

 private:
  // The header is there, the body is not.
  void BeginRequest(httplib::Request& request) {
    stream_.Allow(kHttpBodyBytesMax + kReadBufferBytes, kHttpBodyTimeMax);
    request_ = {.method = request.method,
                .path = std::exchange(request.path, "/"),
                .host = request.get_header_value("Host"),
                .authorization = request.get_header_value("Authorization"),
                .content_type = request.get_header_value("Content-Type"),
                .body = ""};
    chunked_ = request.version != "HTTP/1.0";
    HttpReply admitted = AdmitFraming(request);
    if (admitted.status == 200) admitted = AdmitHeader(request);
    if (admitted.status == 200) admitted = handler_.Admit(request_);
    if (admitted.status != 200) refused_ = std::move(admitted);
    // What a body that nobody reads would leave behind is not the next request; nor is what follows
    // chunks, of whose ends the library is not strict.
    const bool has_chunks = request.has_header("Transfer-Encoding");
    const bool has_body = has_chunks || request.has_header("Content-Length");
    const bool is_post = request.method == "POST";
    const bool is_read = is_post && !refused_.has_value();
    close_after_ = !chunked_ || has_chunks || (!is_read && (has_body || is_post));
    if (close_after_) {
      request.headers.erase("Connection");
      request.headers.emplace("Connection", "close");
    }
    // A reply in parts would cost more than the reply, and compression more than loopback.
    request.ranges.clear();
    request.headers.erase("Accept-Encoding");
  }

  HttpReply AdmitHeader(const httplib::Request& request) const {
    if (std::ssize(request_.path) > kHttpPathBytesMax) {
      return ErrorReply(414, InvalidArgument("the path has {} bytes: at most {}",
                                             request_.path.size(), kHttpPathBytesMax));
    }
    const std::string encoding = request.get_header_value("Content-Encoding", 0);
    if (!encoding.empty() && encoding != "identity") {
      return ErrorReply(
          415, InvalidArgument("Content-Encoding is '{}': send the body as it is", encoding));
    }
    if (request.get_header_value<std::uint64_t>("Content-Length") >
        static_cast<std::uint64_t>(kHttpBodyBytesMax)) {
      return OwnError(413);
    }
    return {};
  }

  HttpReply OwnError(int status) const {
    if (status == 413 || stream_.over_limit()) {
      return ErrorReply(413, InvalidArgument("the request is longer than allowed: a header has at "
                                             "most {} bytes, a body {}",
                                             kHttpHeaderBytesMax, kHttpBodyBytesMax));
    }
    return ErrorReply(status, InvalidArgument("this is no HTTP request that can be read, or it "
                                              "did not come within {} s",
                                              kHttpBodyTimeMax.count()));
  }

  void Answer(httplib::Response& response) {
    HttpReply reply = refused_.has_value()
                          ? *refused_
                          : handler_.Answer(request_, [this] { return stream_.connected(); });
    request_.body.clear();
    FillResponse(std::move(reply), chunked_, stream_, response);
  }

  LimitedStream stream_;
  HttpHandler& handler_;
  HttpRequest request_;
  std::optional<HttpReply> refused_;
  bool chunked_ = true;  // the client of the last request knows chunks
  bool close_after_ = false;
};

// All that a connection beyond the limit gets.
void Turn503Away(int socket) {
  const std::string body =
      ErrorReply(Unavailable("there are {} connections already, which is the most: try again in "
                             "some seconds",
                             kHttpConnectionsMax))
          .body;
  const std::string text = fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: {}\r\n"
      "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
      kRetryAfterSeconds, body.size(), body);
  ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket, SHUT_WR);
  // What has come already is taken out, so that closing does not take the reply away.
  std::array<char, 4096> dropped{};
  while (::recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT) > 0) {
  }
  ::close(socket);
}

absl::Status Bind(int socket, ListenAddress& address) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 v6{};
  sockaddr_in v4{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port = htons(address.port);
  v6.sin6_addr = in6addr_loopback;
  v4.sin_family = AF_INET;
  ::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
  sockaddr_storage bound{};
  socklen_t size = address.is_v6 ? sizeof(v6) : sizeof(v4);
  std::memcpy(&bound, address.is_v6 ? static_cast<void*>(&v6) : &v4, size);
  if (::bind(socket, reinterpret_cast<sockaddr*>(&bound), size) != 0 ||
      ::listen(socket, kListenBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return AlreadyExists("listen on {}: another program has this port: choose another one",
                           address.ToText());
    }
    return ErrnoStatus(errno, fmt::format("listen on {}", address.ToText()));
  }
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return ErrnoStatus(errno, fmt::format("read the port of {}", address.ToText()));
  }
  std::memcpy(address.is_v6 ? static_cast<void*>(&v6) : &v4, &bound, size);
  address.port = ntohs(address.is_v6 ? v6.sin6_port : v4.sin_port);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const ListenAddress& address,
                                                              HttpHandler& handler) {
  ListenAddress bound = address;
  const int listener = ::socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return ErrnoStatus(errno, fmt::format("socket for {}", address.ToText()));
  const absl::Status status = Bind(listener, bound);
  if (!status.ok()) {
    ::close(listener);
    return status;
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(bound), handler, listener));
}

HttpServer::HttpServer(ListenAddress address, HttpHandler& handler, int listener)
    : address_(std::move(address)), handler_(handler), listener_(listener) {
  accept_thread_ = StartThread("cn-http", [this] { Accept(); });
}

HttpServer::~HttpServer() {
  Stop(std::chrono::milliseconds(0));
  ::close(listener_);
}

void HttpServer::Accept() {
  while (!refusing_.load()) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) {
      TakeConnection(socket);
      continue;
    }
    if (refusing_.load()) break;
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) continue;
    LogWarning("accept on {}: {}", address_.ToText(), Message(ErrnoStatus(errno, "accept")));
    const MutexLock lock(mutex_);
    changed_.WaitUntil(mutex_, Clock::now() + kAcceptRetryInterval);
  }
}

void HttpServer::TakeConnection(int socket) {
  // Each event of a stream is one small write.
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  Slot* slot = nullptr;
  {
    const MutexLock lock(mutex_);
    const auto free = std::find_if(slots_.begin(), slots_.end(),
                                   [](const Slot& each) { return each.socket < 0; });
    if (free != slots_.end()) {
      slot = &*free;
      slot->socket = socket;
    }
  }
  if (slot == nullptr) {
    Turn503Away(socket);
    return;
  }
  if (slot->thread.joinable()) slot->thread.join();
  slot->thread = StartThread(fmt::format("cn-http-{}", slot - slots_.data()),
                             [this, slot, socket] { RunConnection(*slot, socket); });
}

void HttpServer::RunConnection(Slot& slot, int socket) {
  Connection(socket, handler_).Run();
  const MutexLock lock(mutex_);
  ::close(socket);
  slot.socket = -1;
  changed_.NotifyAll();
}

bool HttpServer::AllEnded() {
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.socket < 0; });
}

void HttpServer::Refuse() {
  if (refusing_.exchange(true)) return;
  ::shutdown(listener_, SHUT_RDWR);
  accept_thread_.join();
}

void HttpServer::Stop(std::chrono::milliseconds time_max) {
  Refuse();
  {
    const Clock::time_point deadline = Clock::now() + time_max;
    const MutexLock lock(mutex_);
    // Wakes those that wait for a request; to the others their clients look gone.
    for (const Slot& slot : slots_) {
      if (slot.socket >= 0) ::shutdown(slot.socket, SHUT_RD);
    }
    while (!AllEnded() && changed_.WaitUntil(mutex_, deadline)) {
    }
    for (const Slot& slot : slots_) {
      if (slot.socket >= 0) ::shutdown(slot.socket, SHUT_RDWR);
    }
  }
  for (Slot& slot : slots_) {
    if (slot.thread.joinable()) slot.thread.join();
  }
}

}  // namespace cairn::compute
