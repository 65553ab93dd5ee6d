#include "common/base/thread.h"

#include <pthread.h>

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

}  // namespace cairn
