// EngineThread runs an engine on a thread of its own, "kv-engine", with the system's clock.
#include <chrono>
#include <thread>
#include <utility>

#include "common/base/thread.h"
#include "kv-node/engine/engine_core.h"

namespace cairn::kv {
namespace {

class EngineThread final : public EngineCore {
 public:
  using EngineCore::EngineCore;
  ~EngineThread() override {
    if (!thread_.joinable()) return;
    StartStop();
    thread_.join();
  }
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Prepares the engine first.
  absl::Status Start() {
    CAIRN_RETURN_IF_ERROR(Prepare(std::chrono::steady_clock::now()));
    thread_ = StartThread("kv-engine", [this] { Run(); });
    return absl::OkStatus();
  }

 private:
  void Run() {
    constexpr std::chrono::microseconds kWaitMax{
        100000};  // a lost wake-up costs this much, no more
    while (true) {
      const bool busy = RunOnce(std::chrono::steady_clock::now(), kWaitMax);
      if (!busy && HasStopped()) return;
    }
  }

  std::thread thread_;
};

}  // namespace

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

}  // namespace cairn::kv
