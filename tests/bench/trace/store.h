// Store is a storage engine of its own for one replay: over memory, or over an extent file as the
// KV node makes one.
//
// Threading:  one thread.
// Ownership:  sessions end before their store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "kv-node/device/file_device.h"
#include "kv-node/engine/engine.h"
#include "kv-node/layout/extent_file.h"

namespace cairn::bench {

struct StoreOptions {
  kv::EngineOptions engine;
  std::int64_t size_bytes = std::int64_t{1} << 30;
  std::string directory;  // empty: memory; else of a store that is not there yet
  kv::IoEngine io_engine = kv::IoEngine::kAuto;
  std::string device_profile;  // of a modelled device; empty: none
};

class Store {
 public:
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);

  kv::Engine& engine() { return *engine_; }
  absl::StatusOr<KvStats> Stats();

 private:
  Store() = default;

  std::unique_ptr<kv::ExtentFile> file_;  // outlives the engine, whose device uses it
  std::unique_ptr<kv::Engine> engine_;
};

}  // namespace cairn::bench
