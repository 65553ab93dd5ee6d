#include "compute-node/http/reading_client.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace cairn::compute {
namespace {

struct DiagRequest {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

// Address and port of one end; false for what is no TCP address.
bool ReadEnd(const sockaddr_storage& address, __be32* out_address, __be16* out_port) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    std::memcpy(out_address, &v4.sin_addr, sizeof(v4.sin_addr));
    *out_port = v4.sin_port;
    return true;
  }
  if (address.ss_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  std::memcpy(out_address, &v6.sin6_addr, sizeof(v6.sin6_addr));
  *out_port = v6.sin6_port;
  return true;
}

// Asks for the socket at the other end of `socket`.
std::optional<DiagRequest> MakeRequest(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof(own);
  socklen_t peer_size = sizeof(peer);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return std::nullopt;
  }
  DiagRequest request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<__u8>(peer.ss_family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~__u32{0};
  inet_diag_sockid& id = request.body.id;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const bool is_tcp =
      ReadEnd(peer, id.idiag_src, &id.idiag_sport) && ReadEnd(own, id.idiag_dst, &id.idiag_dport);
  return is_tcp ? std::optional(request) : std::nullopt;
}

std::optional<std::int64_t> Ask(int netlink, const DiagRequest& request) {
  if (::send(netlink, &request, sizeof(request), 0) != sizeof(request)) return std::nullopt;
  alignas(nlmsghdr) std::array<char, 4096> buffer{};
  // The kernel answers in the same call.
  const ssize_t got = ::recv(netlink, buffer.data(), buffer.size(), MSG_DONTWAIT);
  nlmsghdr header{};
  inet_diag_msg message{};
  if (got < static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(message))) return std::nullopt;
  std::memcpy(&header, buffer.data(), sizeof(header));
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;  // no such socket here
  std::memcpy(&message, buffer.data() + NLMSG_HDRLEN, sizeof(message));
  return message.idiag_rqueue;
}

}  // namespace

std::optional<std::int64_t> UnreadBytes(int socket) {
  const std::optional<DiagRequest> request = MakeRequest(socket);
  if (!request.has_value()) return std::nullopt;
  // What the other side has not even been given.
  int unsent_bytes = 0;
  if (::ioctl(socket, SIOCOUTQ, &unsent_bytes) != 0) return std::nullopt;
  const int netlink = ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0) return std::nullopt;
  const std::optional<std::int64_t> waiting_bytes = Ask(netlink, *request);
  ::close(netlink);
  if (!waiting_bytes.has_value()) return std::nullopt;
  return unsent_bytes + *waiting_bytes;
}

bool ReadingClient::IsReading(Clock::time_point now, std::int64_t sent_bytes,
                              std::int64_t unread_bytes) {
  const std::int64_t read_bytes = sent_bytes - unread_bytes;
  // Where it had read all, what waits now was not there to be read.
  if (read_bytes > read_bytes_ || has_read_all_ || unread_bytes == 0) progress_ = now;
  read_bytes_ = read_bytes;
  has_read_all_ = unread_bytes == 0;
  return now - progress_ < time_max_;
}

}  // namespace cairn::compute
