// KvWatch looks again and again whether the KV node serves, so that what asks for this daemon's
// health hears of it before a generation fails. What it finds is in the DaemonState.
//
// Threading:  a thread of its own, "cn-kv-watch", which calls `on_change`.
// Ownership:  borrows node and state, which outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "compute-node/kv_client/kv_client.h"
#include "compute-node/service/runtime.h"

namespace cairn::compute {

// From the end of one look to the next.
inline constexpr std::chrono::milliseconds kKvLookInterval{1000};

class KvWatch {
 public:
  // `on_change`: whether it serves, when that has changed.
  KvWatch(KvNode& node, DaemonState& state, std::function<void(bool serves)> on_change,
          std::chrono::milliseconds interval = kKvLookInterval);
  ~KvWatch();  // waits for the look in progress
  KvWatch(const KvWatch&) = delete;
  KvWatch& operator=(const KvWatch&) = delete;

 private:
  void Run();
  void Look();

  KvNode& node_;
  DaemonState& state_;
  const std::function<void(bool)> on_change_;
  const std::chrono::milliseconds interval_;
  std::promise<void> stop_;
  const std::future<void> stopped_ = stop_.get_future();
  std::thread thread_;
};

}  // namespace cairn::compute
