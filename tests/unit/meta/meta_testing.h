// What the metadata store's tests share.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

using Rows = std::map<std::string, std::string>;

inline std::unique_ptr<MetaStore> OpenOrFail(MetaOptions options) {
  absl::StatusOr<std::unique_ptr<MetaStore>> store = MetaStore::Open(std::move(options));
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

inline Rows AllRows(MetaStore& store, Family family, const std::string& prefix = "") {
  Rows rows;
  const absl::Status status =
      store.reader().Scan(family, prefix, [&](std::string_view key, std::string_view value) {
        rows.emplace(key, value);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return rows;
}

inline MetaBatch PutOne(Family family, std::string key, std::string value) {
  MetaBatch batch;
  batch.Put(family, std::move(key), std::move(value));
  return batch;
}

// Keeps the metadata thread in a task until it is destroyed, so that what is queued meanwhile stays
// queued.
class HeldThread {
 public:
  explicit HeldThread(MetaStore& store) {
    std::promise<void> entered;
    EXPECT_TRUE(store
                    .Run([&entered, go = release_.get_future().share()](MetaReader&) {
                      entered.set_value();
                      go.wait();
                    })
                    .ok());
    entered.get_future().wait();
  }
  ~HeldThread() { release_.set_value(); }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

 private:
  std::promise<void> release_;
};

// Waits until everything queued before is done.
inline void Settle(MetaStore& store) {
  std::promise<void> reached;
  ASSERT_TRUE(store.Run([&](MetaReader&) { reached.set_value(); }).ok());
  reached.get_future().wait();
}

}  // namespace cairn::kv
