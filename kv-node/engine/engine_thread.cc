#include "kv-node/engine/engine_thread.h"

#include <chrono>
#include <utility>

#include "common/base/thread.h"

namespace cairn::kv {

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options,
                                                     const StoreId& store_id,
                                                     std::unique_ptr<Device> device,
                                                     std::unique_ptr<MetaStore> meta) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  auto engine = std::make_unique<EngineThread>(options, store_id,
                                               EngineWorld{std::move(device), std::move(meta)});
  CAIRN_RETURN_IF_ERROR(engine->Start());
  return engine;
}

EngineThread::~EngineThread() {
  if (!thread_.joinable()) return;
  StartStop();
  thread_.join();
}

absl::Status EngineThread::Start() {
  CAIRN_RETURN_IF_ERROR(Prepare(std::chrono::steady_clock::now()));
  thread_ = StartThread("kv-engine", [this] { Run(); });
  return absl::OkStatus();
}

void EngineThread::Run() {
  constexpr std::chrono::microseconds kWaitMax{100000};  // a lost wake-up costs this much, no more
  while (true) {
    const bool busy = RunOnce(std::chrono::steady_clock::now(), kWaitMax);
    if (!busy && HasStopped()) return;
  }
}

}  // namespace cairn::kv
