#include "compute-node/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/thread.h"
#include "common/io/open_files.h"
#include "common/log/log.h"
#include "compute-node/http/api_error.h"
#include "compute-node/http/http_syntax.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kListenBacklog = 64;
// How soon accepting is tried again when the process has no more file descriptors or memory.
constexpr std::chrono::milliseconds kAcceptRetryInterval{100};
// How long a new connection waits for the place of one that was idle, whose client may take its
// time to close it.
constexpr std::chrono::milliseconds kPlaceTimeMax{10000};

}  // namespace

// One connection: its requests, one after the other, to the one handler.
class HttpServer::Connection {
 public:
  Connection(int socket, HttpHandler& handler, MemoryBudget& memory)
      : socket_(socket),
        reader_(socket_, memory.request_bytes_max()),
        handler_(handler),
        memory_(memory) {}

  // Whether there is a next request.
  bool WaitForRequest() const {
    return reader_.has_bytes() || socket_.WaitForBytes(kHttpIdleTimeMax);
  }
  // Reads and answers it. False: it was the last.
  bool Serve(int requests_left) {
    HttpRequest request;
    request.memory = MemoryClaim(memory_);
    const HttpRead header = reader_.ReadHeader(request);
    ReplyForm form{.is_http10 = false,
                   .is_head = request.method == "HEAD",
                   .keeps_connection = false,
                   .requests_left = requests_left,
                   .idle_time_max = kHttpIdleTimeMax};
    if (header.kind != HttpRead::Kind::kDone) return EndWith(header, form);
    form.is_http10 = reader_.is_http10();
    const HttpReply refusal = Admit(request);
    const bool is_admitted = refusal.status == 200;
    const bool reads_body = is_admitted && reader_.has_body() && request.method == "POST";
    // A body that nobody reads is not the next request.
    form.keeps_connection =
        requests_left > 0 && reader_.keeps_connection() && (reads_body || !reader_.has_body());
    if (reads_body) {
      if (reader_.awaits_continue() && !WriteContinue(socket_)) return false;
      const HttpRead body = reader_.ReadBody();
      if (body.kind != HttpRead::Kind::kDone) return EndWith(body, form);
    }
    return WriteReply(is_admitted ? Answer(request) : refusal, form, socket_) &&
           form.keeps_connection;
  }
  void Linger() { socket_.Linger(); }

 private:
  bool EndWith(const HttpRead& read, ReplyForm form) {
    form.keeps_connection = false;
    if (read.kind == HttpRead::Kind::kRefused) WriteReply(read.refusal, form, socket_);
    return false;
  }

  HttpReply Admit(const HttpRequest& request) const {
    const std::string_view encoding = request.Header("Content-Encoding");
    if (!encoding.empty() && encoding != "identity") {
      return ErrorReply(
          415, InvalidArgument("Content-Encoding is '{}': send the body as it is", encoding));
    }
    return handler_.Admit(request);
  }

  HttpReply Answer(HttpRequest& request) const {
    try {
      return handler_.Answer(request, [this] { return socket_.connected(); });
    } catch (const std::bad_alloc&) {
      return ErrorReply(Unavailable(
          "there is not enough memory for this request: try again, or send a shorter one"));
    }
  }

  HttpSocket socket_;
  RequestReader reader_;
  HttpHandler& handler_;
  MemoryBudget& memory_;
};

namespace {

// All that a connection beyond the limit gets.
void TurnAway(int socket, const absl::Status& why) {
  const HttpReply reply = ErrorReply(why);
  std::string text = fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: {}\r\n"
      "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
      kRetryAfterSeconds, reply.body.size(), reply.body);
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
                                                              HttpHandler& handler,
                                                              MemoryBudget& memory) {
  ListenAddress bound = address;
  const int listener = ::socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return ErrnoStatus(errno, fmt::format("socket for {}", address.ToText()));
  const absl::Status status = Bind(listener, bound);
  if (!status.ok()) {
    ::close(listener);
    return status;
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(bound), handler, memory, listener));
}

HttpServer::HttpServer(ListenAddress address, HttpHandler& handler, MemoryBudget& memory,
                       int listener)
    : address_(std::move(address)), handler_(handler), memory_(memory), listener_(listener) {
  accept_thread_ = StartThread("cn-http", [this] { Accept(); });
}

HttpServer::~HttpServer() {
  Stop(std::chrono::milliseconds(0));
  ::close(listener_);
}

void HttpServer::Accept() {
  while (!refusing_.load()) {
    // Accepting takes a descriptor before it looks whether a client is there, so that without this
    // wait the lack of one would close idle connections for nobody.
    pollfd entry{.fd = listener_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, -1) < 0 && errno == EINTR) continue;
    if (!IsDescriptorLeftForClient()) {
      HandleAcceptError(EMFILE);
      continue;
    }
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) {
      TakeConnection(socket);
    } else if (!refusing_.load()) {
      HandleAcceptError(errno);
    }
  }
}

void HttpServer::HandleAcceptError(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return;
  const Clock::time_point now = Clock::now();
  if (tell_no_descriptors_.IsDue(now)) {
    LogWarning(
        "{}; HTTP clients wait meanwhile, and idle connections are closed",
        Message(ErrnoStatus(error, fmt::format("accept a connection on {}", address_.ToText()))));
  }
  const MutexLock lock(mutex_);
  EndIdlestLocked();
  changed_.WaitUntil(mutex_, now + kAcceptRetryInterval);
}

void HttpServer::TakeConnection(int socket) {
  // Each event of a stream is one small write.
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  Slot* slot = TakeSlot(socket);
  if (slot == nullptr) {
    TurnAway(socket, Unavailable("there are {} connections already, which is the most, and all of "
                                 "them are busy: try again in some seconds",
                                 kHttpConnectionsMax));
    return;
  }
  if (slot->thread.joinable()) slot->thread.join();
  absl::StatusOr<std::thread> thread =
      TryStartThread(fmt::format("cn-http-{}", slot - slots_.data()),
                     [this, slot, socket] { RunConnection(*slot, socket); });
  if (thread.ok()) {
    slot->thread = *std::move(thread);
    return;
  }
  {
    const MutexLock lock(mutex_);
    slot->socket = -1;
  }
  TurnAway(socket, Unavailable("{}: try again in some seconds", Message(thread.status())));
}

HttpServer::Slot* HttpServer::TakeSlot(int socket) {
  const Clock::time_point deadline = Clock::now() + kPlaceTimeMax;
  const MutexLock lock(mutex_);
  Slot* slot = FindFreeLocked();
  if (slot == nullptr && EndIdlestLocked()) {
    while (slot == nullptr && changed_.WaitUntil(mutex_, deadline)) slot = FindFreeLocked();
  }
  if (slot == nullptr) return nullptr;
  slot->socket = socket;
  slot->idle_from.reset();
  return slot;
}

HttpServer::Slot* HttpServer::FindFreeLocked() {
  const auto free =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.socket < 0; });
  return free == slots_.end() ? nullptr : &*free;
}

bool HttpServer::EndIdlestLocked() {
  Slot* idlest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.socket < 0 || !slot.idle_from.has_value()) continue;
    if (idlest == nullptr || *slot.idle_from < *idlest->idle_from) idlest = &slot;
  }
  if (idlest == nullptr) return false;
  idlest->idle_from.reset();  // once
  ::shutdown(idlest->socket, SHUT_RD);
  return true;
}

int HttpServer::idle_count() {
  const MutexLock lock(mutex_);
  return static_cast<int>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.idle_from.has_value(); }));
}

bool HttpServer::WaitForRequest(Slot& slot, const Connection& connection) {
  {
    const MutexLock lock(mutex_);
    slot.idle_from = Clock::now();
  }
  const bool came = connection.WaitForRequest();
  const MutexLock lock(mutex_);
  // Whose place was given away meanwhile does not begin.
  const bool goes_on = came && slot.idle_from.has_value();
  slot.idle_from.reset();
  return goes_on;
}

void HttpServer::RunConnection(Slot& slot, int socket) {
  {
    Connection connection(socket, handler_, memory_);
    for (int left = kHttpRequestsMax - 1; left >= 0; --left) {
      if (!WaitForRequest(slot, connection) || !connection.Serve(left)) break;
    }
    connection.Linger();
  }
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
