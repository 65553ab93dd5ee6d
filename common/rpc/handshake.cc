#include "common/rpc/handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/check.h"

namespace cairn::rpc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kArenaWord = "arena ";
// A token, a size, and ids of at most 10 digits.
constexpr std::size_t kMessageBytesMax = 512 + 11 * kHandshakeGranuleCountMax;
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * kHandshakeGranuleCountMax);

// What has come so far. A descriptor is owned from the moment it is here.
struct Received {
  std::string text;
  std::vector<UniqueFd> descriptors;
  bool truncated = false;  // this process could not take all descriptors
};

void TakeDescriptors(msghdr& message, std::vector<UniqueFd>& descriptors) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
}

// One read; false at the end of the message.
absl::StatusOr<bool> ReceiveSome(const UniqueFd& socket, Received& received) {
  char bytes[1024];
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  iovec data{bytes, sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  // The KV node ended before it took the connection.
  if (count < 0 && errno == ECONNRESET) return Unavailable("the KV node closed the handshake");
  if (count < 0) return ErrnoStatus(errno, "read the handshake");
  TakeDescriptors(message, received.descriptors);
  if ((message.msg_flags & MSG_CTRUNC) != 0) received.truncated = true;
  received.text.append(bytes, static_cast<std::size_t>(count));
  return count > 0;
}

absl::Status BadMessage() {
  return InvalidArgument("the KV node's handshake has another form: use programs of one release");
}

bool ParseNumber(std::string_view word, std::int64_t number_max, std::int64_t& out) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out);
  return error == std::errc() && end == word.data() + word.size() && out >= 0 && out <= number_max;
}

absl::StatusOr<HandshakeMessage> Parse(Received received) {
  HandshakeMessage out;
  const std::string_view text = received.text;
  const std::size_t line = text.find('\n');
  if (line == std::string_view::npos || text.back() != '\n') return BadMessage();
  out.token = text.substr(0, line);
  std::string_view arena = text.substr(line + 1);
  if (!arena.starts_with(kArenaWord)) return BadMessage();
  arena = arena.substr(kArenaWord.size(), arena.size() - kArenaWord.size() - 1);
  std::size_t fd = 0;
  for (bool first = true; !arena.empty(); first = false) {
    const std::size_t end = std::min(arena.find(' '), arena.size());
    std::int64_t number = 0;
    if (!ParseNumber(arena.substr(0, end), first ? INT64_MAX : INT32_MAX, number)) {
      return BadMessage();
    }
    arena.remove_prefix(std::min(end + 1, arena.size()));
    if (first) {
      out.granule_bytes = number;
      continue;
    }
    if (received.truncated) continue;  // the token counts
    if (fd == received.descriptors.size()) return BadMessage();
    out.granules.push_back(
        {static_cast<std::int32_t>(number), std::move(received.descriptors[fd++])});
  }
  if (!received.truncated && fd != received.descriptors.size()) return BadMessage();
  return out;
}

}  // namespace

absl::Status SendHandshake(const UniqueFd& socket, const std::string& token,
                           std::int64_t granule_bytes, const std::vector<std::int32_t>& ids,
                           const std::vector<int>& descriptors) {
  CAIRN_CHECK_EQ(ids.size(), descriptors.size());
  CAIRN_CHECK_LE(std::ssize(ids), kHandshakeGranuleCountMax);
  std::string text = fmt::format("{}\n{}{}", token, kArenaWord, granule_bytes);
  for (const std::int32_t id : ids) text += fmt::format(" {}", id);
  text += '\n';
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  iovec data{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t bytes = sizeof(int) * descriptors.size();
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(part), descriptors.data(), bytes);
  }
  const ssize_t sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  return ErrnoStatus(sent < 0 ? errno : EMSGSIZE, "send the handshake");
}

absl::StatusOr<HandshakeMessage> ReceiveHandshake(const UniqueFd& socket,
                                                  std::chrono::milliseconds time_max) {
  const Clock::time_point deadline = Clock::now() + time_max;
  Received received;
  while (received.text.size() <= kMessageBytesMax) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd event{socket.get(), POLLIN, 0};
    const int ready = ::poll(&event, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return ErrnoStatus(errno, "wait for the handshake");
    if (ready == 0) return DeadlineExceeded("no handshake came within {} ms", time_max.count());
    CAIRN_ASSIGN_OR_RETURN(const bool more, ReceiveSome(socket, received));
    if (more) continue;
    if (received.text.empty()) return Unavailable("the KV node closed the handshake");
    return Parse(std::move(received));
  }
  return BadMessage();
}

}  // namespace cairn::rpc
