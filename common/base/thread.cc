#include "common/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "common/base/check.h"

namespace cairn {

std::thread StartThread(const std::string& name, std::function<void()> body) {
  constexpr std::size_t kNameLengthMax = 15;  // TASK_COMM_LEN without its zero
  CAIRN_CHECK_LE(name.size(), kNameLengthMax);
  return std::thread([name, body = std::move(body)] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), name.c_str());
    body();
  });
}

RealtimePriority::RealtimePriority(int priority) {
  if (priority == 0) return;
  sched_param parameters{};
  int error = pthread_getschedparam(pthread_self(), &policy_before_, &parameters);
  priority_before_ = parameters.sched_priority;
  parameters.sched_priority = priority;
  if (error == 0) error = pthread_setschedparam(pthread_self(), SCHED_RR, &parameters);
  changed_ = error == 0;
  if (changed_) return;
  status_ = ErrnoStatus(error, fmt::format("run a thread with realtime priority {}", priority));
}

RealtimePriority::~RealtimePriority() {
  sched_param before{};
  before.sched_priority = priority_before_;
  if (changed_) pthread_setschedparam(pthread_self(), policy_before_, &before);
}

}  // namespace cairn
