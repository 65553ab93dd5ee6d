#include "clients/cairn/input_bytes.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "clients/cairn/interrupts.h"

namespace cairn::cli {

InputBytes::InputBytes(int fd, std::function<bool()> on_wake)
    : fd_(fd), on_wake_(std::move(on_wake)) {}

InputBytes::Got InputBytes::Read(std::string& to) {
  for (;;) {
    std::array<pollfd, 2> waiting = {pollfd{fd_, POLLIN, 0}, pollfd{WakeFd(), POLLIN, 0}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0) {
      if (errno == EINTR) continue;
      error_ = errno;
      return Got::kError;
    }
    if (waiting[1].revents != 0) {
      ClearWake();
      if (!on_wake_()) return Got::kWaitEnded;
      continue;
    }
    std::string buffer(kReadBytesMax, '\0');
    const ssize_t size = ::read(fd_, buffer.data(), buffer.size());
    if (size > 0) {
      to.append(buffer, 0, static_cast<std::size_t>(size));
      return Got::kBytes;
    }
    if (size == 0) return Got::kEnd;
    if (errno == EINTR || errno == EAGAIN) continue;
    error_ = errno;
    return Got::kError;
  }
}

}  // namespace cairn::cli
