// EngineThread runs an engine on a thread of its own, "kv-engine", with the system's clock.
#pragma once

#include <thread>

#include "kv-node/engine/engine_core.h"

namespace cairn::kv {

class EngineThread final : public EngineCore {
 public:
  using EngineCore::EngineCore;
  ~EngineThread() override;
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Prepares the engine first.
  absl::Status Start();

 private:
  void Run();

  std::thread thread_;
};

}  // namespace cairn::kv
