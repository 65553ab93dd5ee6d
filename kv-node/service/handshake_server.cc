#include "kv-node/service/handshake_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "common/log/log.h"
#include "common/rpc/handshake.h"

namespace cairn::kv {
namespace {

// How long to leave the backlog alone when the process has no descriptor left.
constexpr int kNoDescriptorPauseMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<HandshakeServer>> HandshakeServer::Start(std::string socket_path,
                                                                        mode_t mode,
                                                                        TokenRegistry* registry,
                                                                        const Engine* engine) {
  CAIRN_RETURN_IF_ERROR(rpc::ClaimSocketPath(socket_path));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd listener, rpc::ListenOnSocket(socket_path, mode));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return ErrnoStatus(errno, "create an eventfd");
  std::unique_ptr<HandshakeServer> server(new HandshakeServer(
      std::move(socket_path), std::move(listener), std::move(stop), registry, engine));
  server->thread_ = StartThread("kv-handshake", [raw = server.get()] { raw->Run(); });
  return server;
}

HandshakeServer::HandshakeServer(std::string socket_path, UniqueFd listener, UniqueFd stop,
                                 TokenRegistry* registry, const Engine* engine)
    : socket_path_(std::move(socket_path)),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      registry_(registry),
      engine_(engine) {}

HandshakeServer::~HandshakeServer() {
  const std::uint64_t one = 1;
  CAIRN_CHECK_EQ(::write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  thread_.join();
  ::unlink(socket_path_.c_str());
}

void HandshakeServer::Run() {
  bool may_accept = true;
  while (true) {
    pollfd events[2] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    // Without a descriptor to spare the listener would be ready again at once, for ever.
    const int count = ::poll(events, may_accept ? 2 : 1, may_accept ? -1 : kNoDescriptorPauseMs);
    if (count < 0) {
      CAIRN_CHECK_EQ(errno, EINTR);
      continue;
    }
    if (events[0].revents != 0) return;
    may_accept = AcceptOne();
  }
}

bool HandshakeServer::AcceptOne() {
  const UniqueFd connection(
      ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.valid()) {
    if (std::exchange(told_no_descriptors_, false)) {
      LogInfo("connections are accepted again socket={}", socket_path_);
    }
    Answer(connection);
    return true;
  }
  if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return true;
  if (tell_no_descriptors_.IsDue()) {
    told_no_descriptors_ = true;
    LogWarning("handshake socket={} error=\"no descriptor left: raise the limit of open files\"",
               socket_path_);
  }
  return false;
}

void HandshakeServer::Answer(const UniqueFd& connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  const absl::StatusOr<std::string> token = registry_->TokenOf(kDefaultApp);
  if (!token.ok()) {
    LogWarning("handshake pid={} uid={} error=\"{}\"", peer.pid, peer.uid, Message(token.status()));
    return;
  }
  const std::vector<std::shared_ptr<const ArenaGranule>> granules =
      engine_->ArenaGranules(kDefaultApp);
  std::vector<std::int32_t> ids;
  std::vector<int> descriptors;
  for (const std::shared_ptr<const ArenaGranule>& granule : granules) {
    ids.push_back(granule->id());
    descriptors.push_back(granule->fd());
  }
  const std::int64_t granule_bytes = granules.empty() ? 0 : granules.front()->size_bytes();
  absl::Status sent = rpc::SendHandshake(connection, *token, granule_bytes, ids, descriptors);
  if (!sent.ok() && !ids.empty()) {
    // Unread messages of others may hold all descriptors that this process may have under way.
    LogWarning("handshake pid={} without shared memory error=\"{}\"", peer.pid, Message(sent));
    sent = rpc::SendHandshake(connection, *token, granule_bytes, {}, {});
  }
  LogDebug("handshake pid={} uid={} gid={} app={} granule_count={} result=\"{}\"", peer.pid,
           peer.uid, peer.gid, kDefaultApp, ids.size(), sent.ok() ? "sent" : Message(sent));
}

}  // namespace cairn::kv
