#include "common/base/parallel.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/thread.h"

namespace cairn {

absl::Status ForEachRange(
    const std::string& name, std::int64_t count, std::int64_t thread_count,
    const std::function<absl::Status(std::int64_t begin, std::int64_t end)>& fn) {
  CAIRN_CHECK_GE(thread_count, 1);
  const std::int64_t ranges = std::min(count, thread_count);
  if (ranges <= 1) return count > 0 ? fn(0, count) : absl::OkStatus();
  std::vector<absl::Status> statuses(static_cast<std::size_t>(ranges));
  const auto run = [&](std::int64_t i) {
    statuses[static_cast<std::size_t>(i)] = fn(count * i / ranges, count * (i + 1) / ranges);
  };
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < ranges; ++i) {
    threads.push_back(StartThread(name, [&run, i] { run(i); }));
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) CAIRN_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace cairn
