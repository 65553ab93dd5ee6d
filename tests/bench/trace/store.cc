#include "tests/bench/trace/store.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "kv-node/device/memory_device.h"
#include "kv-node/device/modelled_device.h"
#include "kv-node/meta/meta_store.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::bench {

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  std::optional<kv::DeviceModel> model;
  if (!options.device_profile.empty()) {
    CAIRN_ASSIGN_OR_RETURN(model, kv::FindDeviceModel(options.device_profile));
  }
  std::unique_ptr<Store> store(new Store());
  kv::MetaOptions meta_options;
  std::unique_ptr<kv::Device> device;
  kv::StoreId store_id = kv::NewStoreId();
  if (options.directory.empty()) {
    meta_options.path = "/cairn-trace";
    meta_options.in_memory = true;
    device = std::make_unique<kv::MemoryDevice>(options.size_bytes);
    if (model) {
      device =
          std::make_unique<kv::ModelledDevice>(std::move(device), *model, kv::kQueueDepthDefault);
    }
  } else {
    CAIRN_ASSIGN_OR_RETURN(store->file_,
                           kv::ExtentFile::Create({.directory = options.directory},
                                                  {.size_bytes = options.size_bytes}));
    store_id = store->file_->store_id();
    meta_options.path =
        (std::filesystem::path(options.directory) / kv::kMetaDirectoryName).string();
    kv::FileDeviceOptions device_options;
    device_options.engine = options.io_engine;
    device_options.model = model;
    CAIRN_ASSIGN_OR_RETURN(device, kv::OpenFileDevice(store->file_->fd(), device_options));
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<kv::MetaStore> meta,
                         kv::MetaStore::Open(std::move(meta_options)));
  CAIRN_ASSIGN_OR_RETURN(store->engine_, kv::Engine::Open(options.engine, store_id,
                                                          std::move(device), std::move(meta)));
  return store;
}

absl::StatusOr<KvStats> Store::Stats() {
  return kv::Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
}

}  // namespace cairn::bench
