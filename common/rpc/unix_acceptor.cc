#include "common/rpc/unix_acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "common/io/open_files.h"
#include "common/log/log.h"

namespace cairn::rpc {
namespace {

// How soon accepting is tried again without descriptors, and when connections are looked at while
// there are too many.
constexpr std::chrono::milliseconds kRetryInterval{100};

std::optional<ino_t> InodeOf(int descriptor) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISSOCK(info.st_mode)) return std::nullopt;
  return info.st_ino;
}

// What a client has sent.
enum class Heard { kNothing, kBytes, kEnd };
Heard Listen(const UniqueFd& socket) {
  char byte = 0;
  const ssize_t count = ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count > 0) return Heard::kBytes;
  return count < 0 && (errno == EAGAIN || errno == EINTR) ? Heard::kNothing : Heard::kEnd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixAcceptor>> UnixAcceptor::Start(UnixAcceptorOptions options,
                                                                  Take take) {
  CAIRN_RETURN_IF_ERROR(ClaimSocketPath(options.socket_path));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd listener,
                         ListenOnSocket(options.socket_path, options.socket_mode));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return ErrnoStatus(errno, "create an eventfd");
  std::unique_ptr<UnixAcceptor> acceptor(
      new UnixAcceptor(std::move(options), std::move(listener), std::move(stop), std::move(take)));
  acceptor->thread_ = StartThread("rpc-accept", [raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

UnixAcceptor::UnixAcceptor(UnixAcceptorOptions options, UniqueFd listener, UniqueFd stop, Take take)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      take_(std::move(take)) {}

UnixAcceptor::~UnixAcceptor() {
  const std::uint64_t one = 1;
  CAIRN_CHECK_EQ(::write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  thread_.join();
  ::unlink(options_.socket_path.c_str());
}

void UnixAcceptor::Run() {
  while (Wait()) {
    AcceptAll();
    EndOldSilent();
    HandOn();
  }
}

bool UnixAcceptor::Wait() {
  std::vector<pollfd> events = {{stop_.get(), POLLIN, 0}};
  // Without descriptors the listener would be ready again at once, and so would who may not go on.
  if (!no_descriptors_) events.push_back({listener_.get(), POLLIN, 0});
  if (!full_) {
    for (const Silent& silent : silent_) events.push_back({silent.socket.get(), POLLIN, 0});
  }
  std::optional<Clock::time_point> deadline;
  if (!silent_.empty()) deadline = silent_.front().end;
  if (no_descriptors_ || full_) deadline = Clock::now() + kRetryInterval;
  int time_max = -1;
  if (deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
    time_max = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }
  if (::poll(events.data(), events.size(), time_max) < 0 && errno != EINTR) {
    ::poll(events.data(), 1, static_cast<int>(kRetryInterval.count()));  // no memory
  }
  std::uint64_t stop = 0;
  return ::read(stop_.get(), &stop, sizeof(stop)) < 0;
}

void UnixAcceptor::AcceptAll() {
  for (int i = 0; i < options_.silent_count_max; ++i) {
    UniqueFd socket = AcceptOne();
    if (!socket.valid()) {
      no_descriptors_ = HandleError(errno);
      return;
    }
    no_descriptors_ = false;
    if (std::exchange(told_no_descriptors_, false)) {
      LogInfo("connections are accepted again socket={}", options_.socket_path);
    }
    silent_.push_back({std::move(socket), Clock::now() + options_.silent_time_max});
    HandOn();
    if (std::ssize(silent_) <= options_.silent_count_max) continue;
    if (tell_silent_.IsDue()) {
      LogWarning(
          "connections that send nothing are closed socket={} waiting_max={}: some program opens "
          "them and does not use them",
          options_.socket_path, options_.silent_count_max);
    }
    silent_.pop_front();
  }
}

UniqueFd UnixAcceptor::AcceptOne() {
  pollfd waiting = {listener_.get(), POLLIN, 0};
  if (::poll(&waiting, 1, 0) == 1 && !IsDescriptorLeftForClient()) {
    errno = EMFILE;
    return UniqueFd();
  }
  return UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

bool UnixAcceptor::HandleError(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return false;
  if (tell_no_descriptors_.IsDue()) {
    told_no_descriptors_ = true;
    LogWarning("{}; clients wait meanwhile, and connections that send nothing are closed",
               Message(ErrnoStatus(
                   error, fmt::format("accept a connection on {}", options_.socket_path))));
  }
  if (!silent_.empty()) silent_.pop_front();
  return true;
}

void UnixAcceptor::HandOn() {
  full_ = false;
  std::erase_if(silent_, [this](Silent& silent) {
    switch (Listen(silent.socket)) {
      case Heard::kNothing:
        return false;
      case Heard::kEnd:
        return true;
      case Heard::kBytes:
        break;
    }
    if (!MayTake()) return false;
    taken_.push_back({silent.socket.get(), InodeOf(silent.socket.get()).value_or(0)});
    take_(std::move(silent.socket));
    return true;
  });
}

bool UnixAcceptor::MayTake() {
  if (std::ssize(taken_) < options_.connection_count_max) return true;
  std::erase_if(taken_, [](const Taken& taken) {
    return InodeOf(taken.descriptor) != std::optional<ino_t>(taken.inode);
  });
  if (std::ssize(taken_) < options_.connection_count_max) return true;
  full_ = true;
  if (tell_full_.IsDue()) {
    LogWarning(
        "{} connections are open, the most that may be socket={}: others wait until one ends",
        options_.connection_count_max, options_.socket_path);
  }
  return false;
}

void UnixAcceptor::EndOldSilent() {
  const Clock::time_point now = Clock::now();
  while (!silent_.empty() && silent_.front().end <= now) silent_.pop_front();
}

}  // namespace cairn::rpc
