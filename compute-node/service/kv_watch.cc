#include "compute-node/service/kv_watch.h"

#include <utility>

#include "common/base/thread.h"
#include "common/log/log.h"

namespace cairn::compute {

KvWatch::KvWatch(KvNode& node, DaemonState& state, std::function<void(bool serves)> on_change,
                 std::chrono::milliseconds interval)
    : node_(node), state_(state), on_change_(std::move(on_change)), interval_(interval) {
  thread_ = StartThread("cn-kv-watch", [this] { Run(); });
}

KvWatch::~KvWatch() {
  stop_.set_value();
  thread_.join();
}

void KvWatch::Run() {
  while (stopped_.wait_for(interval_) != std::future_status::ready) Look();
}

void KvWatch::Look() {
  const absl::Status status = node_.Probe(kKvLookTimeMax);
  const bool served = state_.kv_status().ok();
  const bool changed = served != status.ok();
  // Who learns that it serves finds that in the log.
  if (changed && status.ok()) LogInfo("cairn-kv-node serves again");
  if (changed && !status.ok()) LogWarning("cairn-kv-node does not answer: {}", Message(status));
  state_.SetKvStatus(status.ok() ? absl::OkStatus()
                                 : Unavailable("cairn-kv-node does not answer: {}; is it running? "
                                               "Its log may say why",
                                               Message(status)));
  if (changed) on_change_(status.ok());
}

}  // namespace cairn::compute
